"""Test a policy: `pytest test_shortest.py`."""

from pathlib import Path

from ones.testing import PolicyContract


class TestShortest(PolicyContract):
    policy = str(Path(__file__).with_name("shortest.py"))
