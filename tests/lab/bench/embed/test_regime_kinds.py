"""The laws of the model `regimes`: their form, and the range of their jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.errors import UnknownNameError
from ones.lab.bench.embed.benchmark import EmbedTrial
from ones.lab.bench.embed.regime_kinds import KINDS, MIX, generated

KIND = KINDS["vision-small"]


def test_a_sample_counts_fully_then_by_the_square_root_then_no_step_is_saved() -> None:
    perfect, limit = KIND.perfect, KIND.limit
    assert KIND.efficiency(perfect, 0.0) == 1.0
    assert KIND.efficiency(4 * perfect, 0.0) == pytest.approx(0.5)
    steps = [1 / (batch * KIND.efficiency(batch, 0.0)) for batch in (limit, 2 * limit, 8 * limit)]
    assert steps == pytest.approx([steps[0]] * 3)


def test_halfway_through_training_larger_batches_become_useful_at_once() -> None:
    assert KIND.efficiency(2 * KIND.perfect, 0.499) == pytest.approx(0.5**0.5)
    assert KIND.efficiency(2 * KIND.perfect, 0.5) == 1.0
    assert KIND.noise(0.5) == 2 * KIND.noise(0.0)


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 17), st.sampled_from([0.0, 0.7]))
def test_a_larger_batch_never_needs_more_steps_nor_fewer_samples(
    name: str, power: int, done: float
) -> None:
    kind, batch = KINDS[name], 2**power
    assert kind.efficiency(2 * batch, done) <= kind.efficiency(batch, done)
    gain, more = (b * kind.efficiency(b, done) for b in (batch, 2 * batch))
    assert more >= gain * (1 - 1e-12)


def test_synchronisation_grows_with_each_node_and_is_not_hidden() -> None:
    seconds = [KIND.step_seconds(4 * nodes, nodes, 32, 1) for nodes in (1, 2, 3, 4)]
    assert np.diff(seconds) == pytest.approx([KIND.node] * 3)
    alone = KIND.step_seconds(1, 1, 32, 1)
    assert KIND.step_seconds(4, 1, 32, 1) - alone == pytest.approx(2 * KIND.tree)


def test_epochs_take_from_seconds_to_hours_and_every_job_has_a_largest_batch() -> None:
    epochs = []
    for kind in KINDS.values():
        step = kind.step_seconds(1, 1, kind.base_batch, -(-kind.base_batch // kind.fits))
        epochs.append(kind.size / kind.base_batch * step)
    assert min(epochs) < 2
    assert max(epochs) > 7 * 3600
    assert sum(MIX.values()) == pytest.approx(1.0)
    assert set(MIX) == set(KINDS)
    jobs = generated(1, 200, hours=6.0)
    assert all(t.job.max_batch == t.kind.max_batch for t in jobs)
    assert jobs[-1].job.submitted_at == pytest.approx(6 * 3600)
    assert 0.3 < np.std(np.log([t.length for t in jobs])) < 0.7
    assert [t.job for t in jobs] == [t.job for t in generated(1, 200, hours=6.0)]


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'regime'; did you mean 'regimes'"):
        EmbedTrial(model="regime")
    assert EmbedTrial(model="regimes", jobs=3, hide_kinds=True).work(1)[0].job.kind == ""
