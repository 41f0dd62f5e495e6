"""`ones bench rescale --unix`: the same job with and without ones-launchd."""

from __future__ import annotations

import os
import sys

import pytest

from ones.errors import UserError
from ones.lab.bench.elastic import as_user
from ones.launchers.launchd_client import LaunchdError
from tests.unix_users import Machine


def test_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match="--unix ann: needs root"), as_user.jobs_of_user("ann"):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match="there is no such Unix user"):  # noqa: SIM117
        with as_user.jobs_of_user("no-such-user"):
            pass


def test_its_ones_launchd_serves_that_user_only_and_leaves_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", machine.python[0])
    monkeypatch.setenv("PYTHONPATH", machine.path)
    with as_user.jobs_of_user(machine.ann.pw_name) as jobs:
        client = jobs.client
        try:
            assert client.resolve(machine.ann.pw_name).uid == machine.ann.pw_uid
            with pytest.raises(LaunchdError, match="is not listed"):
                client.resolve(machine.bob.pw_name)
        finally:
            client.close()
    assert not jobs.directory.exists()
