"""Which GPUs of a machine are close to one another, as NVML tells.

GPUs that NVLink joins are a group. Where it joins all of them, or none is told, there are none;
where it joins them in a mesh that lacks some links, or not at all, those of one socket are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Near = Callable[[int, int], bool]


def groups(count: int, linked: Near, same_socket: Near) -> tuple[str, ...]:
    """The name of each GPU's group; empty names where all are alike.

    >>> groups(4, lambda a, b: a // 2 == b // 2, lambda a, b: True)
    ('nvlink0', 'nvlink0', 'nvlink1', 'nvlink1')
    >>> groups(4, lambda a, b: False, lambda a, b: a % 2 == b % 2)
    ('socket0', 'socket1', 'socket0', 'socket1')
    >>> groups(2, lambda a, b: True, lambda a, b: False)
    ('', '')
    """
    for name, near in (("nvlink", linked), ("socket", same_socket)):
        parts = _parts(count, near)
        if parts is None or len(set(parts)) == count:
            continue
        if len(set(parts)) == 1:
            break
        return tuple(f"{name}{part}" for part in parts)
    return ("",) * count


def _parts(count: int, near: Near) -> list[int] | None:
    """Number of each one's part, if within every part all are near one another and no others."""
    parts: list[int] = []
    for one in range(count):
        close = [parts[other] for other in range(one) if near(other, one)]
        part = close[0] if close else len(set(parts))
        if close != [other for other in parts if other == part]:
            return None
        parts.append(part)
    return parts


def nvml_groups(devices: Sequence[Any], nvml: Any) -> tuple[str, ...]:  # noqa: ANN401
    """Of these devices. What a driver does not tell is as if all were alike."""

    def linked(a: int, b: int) -> bool:
        try:
            status = nvml.nvmlDeviceGetP2PStatus(
                devices[a], devices[b], nvml.NVML_P2P_CAPS_INDEX_NVLINK
            )
        except nvml.NVMLError:
            return False
        return bool(status == nvml.NVML_P2P_STATUS_OK)

    def same_socket(a: int, b: int) -> bool:
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(devices[a], devices[b])
        except nvml.NVMLError:
            return True
        return bool(level < nvml.NVML_TOPOLOGY_SYSTEM)

    return groups(len(devices), linked, same_socket)
