"""How all tests are run: the same examples every time, unless random ones are asked for.

`HYPOTHESIS_PROFILE=random` draws other examples in each run (`make test-random`).
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

# A law holds or not: how long an example takes on a busy machine is no part of it.
settings.register_profile(
    "fixed",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "random",
    settings.get_profile("fixed"),
    derandomize=False,
    max_examples=500,
    print_blob=True,
)

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fixed")
settings.load_profile(PROFILE)

if PROFILE == "fixed":
    # Hypothesis also draws constants of the modules that are loaded. Which ones are loaded depends
    # on the tests that ran before in the same process, and so on xdist.
    _NONE = Constants()
    providers._get_local_constants = lambda: _NONE

# A shell starts background processes with SIGINT ignored, and children inherit that: commands that
# tests interrupt would never see the signal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
