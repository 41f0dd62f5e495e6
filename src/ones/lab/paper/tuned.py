"""Rivals at their strongest: the variant of each for each mechanism, chosen on calibration seeds.

docs/calibration.md has the commands and what was measured. Nothing here was chosen on the seeds of
an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CALIBRATION_SEEDS = (1, 2, 3)

Tuned = Mapping[str, Mapping[str, str]]  # mechanism -> policy -> label of its best variant


def _with_native(chosen: Tuned) -> Tuned:
    """These rivals change jobs through checkpoints."""
    return {**chosen, "native": chosen["checkpoint"]}


#: on the paper's 50 jobs
TUNED = _with_native(
    {
        "elastic": {"sia": "sia:5s", "pollux": "pollux:5s", "equi": "equi:tolerance-50"},
        "checkpoint": {"sia": "sia:15s", "pollux": "pollux:15s", "equi": "equi:tolerance-100"},
    }
)
#: where jobs queue: rounds of 60 s, the default, are better for `sia`, and with checkpoints for
#: `pollux`
TUNED_CONTENDED = _with_native(
    {
        "elastic": {"pollux": "pollux:15s", "equi": "equi:tolerance-50"},
        "checkpoint": {"equi": "equi:tolerance-100"},
    }
)


def tuned_labels(policies: Sequence[str], mechanism: str, tuned: Tuned = TUNED) -> list[str]:
    """The policies, the tuned ones by their label for this mechanism.

    >>> tuned_labels(["ones", "sia"], "elastic")
    ['ones', 'sia:5s']
    """
    return [tuned[mechanism].get(policy, policy) for policy in policies]
