"""Limits after failed rescales: their size, their duration, their removal."""

from __future__ import annotations

import json

from ones.core import JobId
from ones.policies.ones.predict.failed_rescales import FIRST_WAIT, LONGEST_WAIT, FailedRescales

A = JobId("a")


def test_the_limit_is_half_of_the_failed_size_until_the_wait_ends() -> None:
    failed_rescales = FailedRescales()
    failed_rescales.requested(A, 16)
    assert failed_rescales.gpu_limit(A, 0.0) is None
    failed_rescales.failed(A, held=2, now=100.0)
    assert failed_rescales.gpu_limit(A, 100.0 + FIRST_WAIT - 1) == 8
    assert failed_rescales.gpu_limit(A, 100.0 + FIRST_WAIT) is None


def test_waits_grow_and_the_limit_is_never_below_the_held_gpus() -> None:
    failed_rescales, now = FailedRescales(), 0.0
    for wait in (FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT):
        failed_rescales.requested(A, 8)
        failed_rescales.failed(A, held=6, now=now)
        assert failed_rescales.gpu_limit(A, now + wait - 1) == 6
        now += wait
        assert failed_rescales.gpu_limit(A, now) is None
    for _ in range(20):
        failed_rescales.failed(A, held=6, now=now)
    assert failed_rescales.gpu_limit(A, now + LONGEST_WAIT) is None


def test_a_successful_larger_size_removes_the_limit_and_state_is_saved() -> None:
    failed_rescales, other = FailedRescales(), FailedRescales()
    failed_rescales.requested(A, 8)
    failed_rescales.failed(A, held=1, now=0.0)
    other.load(json.loads(json.dumps(failed_rescales.save())))
    assert other.gpu_limit(A, 1.0) == 4
    other.requested(A, 4)
    other.succeeded(A)  # no more than was allowed: the next refusal still waits longer
    assert other.gpu_limit(A, 1.0) == 4
    other.requested(A, 8)
    other.succeeded(A)
    assert other.gpu_limit(A, 1.0) is None
    failed_rescales.forget(A)
    assert failed_rescales.gpu_limit(A, 1.0) is None
