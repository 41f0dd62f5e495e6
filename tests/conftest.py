"""How all tests are run."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A law holds or not: how long an example takes on a busy machine is no part of it.
settings.register_profile("ones", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ones")
