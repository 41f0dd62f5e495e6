"""What the emulated device does, as one JSON object. Its process is its own: torch has one such
device per process, and keeps it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from torch import nn

from ones.train.emulation import VARIABLE
from ones.train.emulation.extension import activate, operators
from ones.train.emulation.strict_group import EmulatedGroup
from ones.train.memory import available_bytes

device = activate(os.environ[VARIABLE])
found: dict[str, Any] = {}


def trained(name: str, options: dict[str, Any], on: torch.device) -> list[torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )
    x = torch.randn(5, 3, 8, 8)
    make: Any = getattr(torch.optim, name)
    optimizer = make(net.parameters(), lr=0.1, **options)
    net.to(on)  # after the optimizer has the parameters, as in ones.join
    for _ in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(net(x.to(on)).square().mean())
        optimizer.step()
    return [value.cpu() for value in net.state_dict().values()]


def waits(work: Callable[[], object]) -> int:
    before = operators.host_waits()
    work()
    return int(operators.host_waits() - before)


def problem_of(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


for name, options in (
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("AdamW", {}),
    ("AdamW", {"foreach": True}),
    ("AdamW", {"fused": True}),
):
    pairs = zip(
        trained(name, options, torch.device("cpu")), trained(name, options, device), strict=True
    )
    found[f"{name} {options}"] = all(torch.equal(a, b) for a, b in pairs)

x, on_host = torch.ones(4, device=device), torch.ones(4)
pinned = on_host.pin_memory()
found["waits"] = {
    "item": waits(x[0].item),
    "to the host": waits(x.cpu),
    "to the device": waits(lambda: on_host.to(device)),
    "pinned, to the device": waits(lambda: pinned.to(device, non_blocking=True)),
    "a kernel": waits(lambda: x + 1),
}

before = operators.bytes_used()
large = torch.empty(1 << 20, device=device) + 1
found["bytes"] = operators.bytes_used() - before >= 4 << 20
del large
found["freed"] = operators.bytes_used() == before

operators.started(7)
operators.finished(7)
operators.stream_waits(7)  # it is over: nothing to wait for
operators.started(8)
found["not awaited"] = float((x + 1).sum())
operators.stream_waits(8)
order: list[str] = []


def end() -> None:
    order.append("operation")
    operators.finished(8)


timer = threading.Timer(0.2, end)
timer.start()
x.add_(1)
order.append("kernel")
timer.join()
found["order"] = order

group = EmulatedGroup(None, 0, 2)
c10d: Any = torch.distributed
found["host tensor"] = problem_of(lambda: group.allreduce([on_host], c10d.AllreduceOptions()))

found["memory known"] = available_bytes(device)
operators.limit_bytes(1 << 20)
found["memory left"] = available_bytes(device)
operators.limit_bytes(1)
found["out of memory"] = problem_of(lambda: torch.empty(1 << 20, device=device))
operators.limit_bytes(0)
operators.fail("device-side assert triggered")
found["failed"] = [problem_of(lambda: x + 1), problem_of(x.cpu)]
print(json.dumps(found))
