"""The service from Python: submit, watch, change and await jobs; with or without asyncio.

    from ones.client import Client

    with Client.connect() as ones:
        job = ones.submit(["python", "train.py"], name="digits", max_gpus=4)
        print(ones.wait([job.id])[0].accuracy)

Answers are the types of the HTTP interface (`ones.control.api.response_models`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> object:  # the commands use parts of this package without the rest
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ones.client.clients"), name)
