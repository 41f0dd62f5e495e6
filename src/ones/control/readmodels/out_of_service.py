"""A line about the GPUs that are out of service, for waiting jobs, `ones ps` and `ones top`."""

from __future__ import annotations

from collections.abc import Mapping

#: maximum number of GPUs that are named; further GPUs are only counted
MOST_NAMED = 4
#: start of the reason for a GPU that is used by processes outside ONES
USED_BY = "used by "


def out_of_service(n_gpus: int, reasons: Mapping[str, str]) -> str:
    """The line about GPUs out of service; empty if all are in service.

    `reasons` is by GPU, as node/index.

    >>> out_of_service(4, {"local/3": "set aside by ann"})
    '1 of 4 GPUs is out of service: local/3 (set aside by ann); ones cluster undrain local/3'
    >>> out_of_service(4, {"n0/1": "x", "n0/2": "y"})
    '2 of 4 GPUs are out of service: n0/1 (x), n0/2 (y); see ones cluster'
    >>> out_of_service(9, {f"n0/{i}": "" for i in range(6)})
    '6 of 9 GPUs are out of service: n0/0, n0/1, n0/2, n0/3 and 2 more; see ones cluster'
    """
    if not reasons:
        return ""
    named = [f"{gpu} ({why})" if why else gpu for gpu, why in reasons.items()]
    more = len(named) - MOST_NAMED
    listed = ", ".join(named[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    are = "is" if len(named) == 1 else "are"
    # undrain does not end the processes outside ONES that use a GPU
    can_undrain = len(named) == 1 and not next(iter(reasons.values())).startswith(USED_BY)
    remedy = f"ones cluster undrain {next(iter(reasons))}" if can_undrain else "see ones cluster"
    return f"{len(named)} of {n_gpus} GPUs {are} out of service: {listed}; {remedy}"
