"""The contract of policies, for ours and those that are installed beside.

`pytest tests/contracts/test_policy.py --policy mine.py` tests one policy by name or file.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ones.testing import PolicyContract


class TestPolicies(PolicyContract):
    @settings(
        max_examples=25,
        deadline=None,
        suppress_health_check=[  # of many policies, each with an instance of this class
            HealthCheck.too_slow,
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(seed=st.integers(0, 2**32))
    def test_it_survives_random_failures(self, name: str, seed: int) -> None:
        self.check_random_failures(name, seed)
