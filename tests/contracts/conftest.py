"""What stands behind the contracts: PostgreSQL and Slurm, where they are installed; and which
policies are held to theirs."""

from __future__ import annotations

import pytest

from ones.policies import names
from tests.databases import postgres
from tests.slurm import slurm_allocation, slurm_cluster

__all__ = ["postgres", "slurm_allocation", "slurm_cluster"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--policy", action="append", metavar="NAME", help="hold only this policy, or file, to it"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.endswith("test_policy") and "name" in metafunc.fixturenames:
        metafunc.parametrize("name", metafunc.config.getoption("--policy") or names())
