"""Groups of GPUs of a machine that are close to one another, from NVML.

GPUs connected by NVLink are a group. If NVLink connects all GPUs, there are no groups. If it
connects none, or not every pair within a group, the GPUs of one CPU socket are a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Near = Callable[[int, int], bool]


def groups(count: int, linked: Near, same_socket: Near) -> tuple[str, ...]:
    """The name of each GPU's group; empty names if all are alike.

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
    """The part of each GPU, if `near` holds within every part and never between two; else None."""
    parts: list[int] = []
    for one in range(count):
        close = [parts[other] for other in range(one) if near(other, one)]
        part = close[0] if close else len(set(parts))
        if close != [other for other in parts if other == part]:
            return None
        parts.append(part)
    return parts


def nvml_groups(devices: Sequence[Any], nvml: Any) -> tuple[str, ...]:  # noqa: ANN401
    """The group of each device. Devices of which the driver reports nothing count as alike."""

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
