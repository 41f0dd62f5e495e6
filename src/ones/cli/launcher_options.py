"""Options of `ones up` that launchers declare in their settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from ones.extensions import SettingInfo
from ones.launchers.registry import service_settings

KINDS: dict[str, type] = {"int": int, "float": float, "str": str}


def with_launcher_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of launchers after `--launcher`.

    The command gets them as keyword arguments, named as their settings in the section `[service]`.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            parameters.append(parameter)
        if parameter.name == "launcher":
            for name, setting in service_settings().items():
                if "option" in setting.info.metadata:
                    parameters.append(_parameter(name, setting.info))
    changed = signature.replace(parameters=parameters)
    command.__signature__ = changed  # type: ignore[attr-defined]  # typer reads it
    return command


def _parameter(name: str, info: SettingInfo) -> inspect.Parameter:
    option = typer.Option(
        info.metadata["option"],
        metavar=info.metadata.get("metavar"),
        help=f"{info.help[0].upper()}{info.help[1:]}.",
    )
    kind = KINDS[info.type.removesuffix(" | None")]
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[kind | None, option],
    )
