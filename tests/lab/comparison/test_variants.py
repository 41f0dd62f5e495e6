"""Variants: settings of a policy or of one of its variants, and names that are refused."""

from __future__ import annotations

import pytest

from ones.errors import UnknownNameError, UserError
from ones.lab.comparison import variants as variants_module
from ones.lab.comparison.variants import parse_variants
from tests.lab.comparison.cells import cells


def test_settings_reach_the_policy_or_one_variant_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        variants_module,
        "NAMED_VARIANTS",
        {"fifo": {"filling": {"backfill": True}, "x": {"gone": 1}}},
    )
    found = parse_variants(
        ["fifo", "fifo:filling", "fifo:mine"],
        settings={"fifo": {"backfill": False}},
        given=["fifo:mine.backfill=true"],
    )
    assert [dict(e.settings) for e in found] == [
        {"backfill": False}, {"backfill": True}, {"backfill": True},
    ]  # fmt: skip
    assert [e.policy for e in found] == ["fifo"] * 3
    with pytest.raises(UnknownNameError, match="variant of policy fifo 'x'"):
        parse_variants(["fifo:x"])  # its setting is not one that fifo has here


@pytest.mark.parametrize("policy", variants_module.NAMED_VARIANTS)
def test_every_variant_of_the_table_can_be_made(policy: str) -> None:
    """A setting that was renamed would drop its variant without a word."""
    variants = variants_module.NAMED_VARIANTS[policy]
    assert set(variants_module.named_variants(policy)) == set(variants)
    cells(policy, *(f"{policy}:{name}" for name in variants), seeds=1)


@pytest.mark.parametrize(
    ("labels", "given", "message"),
    [
        (["fifoo"], [], "unknown policy 'fifoo'; did you mean 'fifo'"),
        (["fifo:fast"], [], "unknown variant of policy fifo 'fast'"),
        (["fifo"], ["fifo.backfil=true"], "did you mean 'backfill'"),
        (["fifo"], ["backfill=true"], "'backfill=true' is not POLICY.KEY=VALUE"),
        (["fifo"], ["equi.x=1"], "unknown policy of the comparison 'equi'"),
        (["fifo", "fifo"], [], "fifo appears twice"),
    ],
)
def test_an_invalid_variant_is_named(labels: list[str], given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_variants(labels, given=given)
