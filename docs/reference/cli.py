"""cli.md: every command, from the definitions of the command line."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator

import typer.main
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from docs.reference.markdown import TYPE_NAMES, anchor, block, code, page, table
from ones.cli.app import app
from ones.config import SimSettings

#: examples of commands that have none in their help
EXAMPLES = {
    "ones demo": "ones demo --keep out/demo",
    "ones replay": "ones replay out/equi/run.jsonl",
    "ones config": "ones config --json",
    "ones link": "ones link",
    "ones top": "ones top",
    "ones doctor": "ones doctor --json",
    "ones run": 'ones run --slots 4 --schedule "0:1,50:2,120:4,200:1" -- python train.py',
    "ones trace inspect": "ones trace inspect trace.csv --gpus 64",
    "ones bench sim": "ones bench sim --gpus 64,1024 --jobs 5000,20000 --json",
}
_EXAMPLE = re.compile(r"^Example: ((?:.+\n?)+)", re.MULTILINE)
_COMPLETION = ("install_completion", "show_completion")


def cli_page() -> str:
    root = typer.main.get_group(app)
    leaves = list(commands(root))
    return page(
        "# Commands",
        root.help or "",
        "Results go to standard output. Progress, hints and errors go to standard error. An error "
        "is one line, and its [exit code](errors.md) shows whether the user, the administrator or "
        "the developers must act. [Results](results.md) describes the output of `--json`.",
        "A default followed by a name, as `sim.gpus`, is a [setting](config.md).",
        table(
            ["command", "does"],
            ([f"[`{name}`](#{anchor(name)})", _paragraphs(leaf)[0]] for name, leaf in leaves),
        ),
        table(["option of `ones` itself", "does"], _own_options(root)),
        "`--install-completion` sets up completion for the shell that you use; "
        "`--show-completion` prints the script for it.",
        *(_command(name, leaf) for name, leaf in leaves),
    )


def commands(
    group: TyperGroup, name: str = "ones"
) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Every command (not the groups) with its full name, in the order of the help."""
    for child, inner in group.commands.items():
        if isinstance(inner, TyperGroup):
            if inner.invoke_without_command:
                yield f"{name} {child}", inner
            yield from commands(inner, f"{name} {child}")
        elif isinstance(inner, TyperCommand) and not inner.hidden:
            yield f"{name} {child}", inner


def example_of(name: str, command: TyperCommand | TyperGroup) -> str:
    found = _EXAMPLE.search(command.help or "")
    return " ".join(found[1].split()) if found else EXAMPLES[name]


def _paragraphs(command: TyperCommand | TyperGroup) -> list[str]:
    """The help of a command in paragraphs, without the example."""
    return _EXAMPLE.sub("", command.help or "").strip().split("\n\n")


def _command(name: str, command: TyperCommand | TyperGroup) -> str:
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in command.params if isinstance(p, TyperOption) and not p.hidden]
    told_of_arguments = table(
        ["argument", "type", "what it is"],
        ([code(_upper(p)), _type_of(p), p.help or ""] for p in arguments),
    )
    told_of_options = table(
        ["option", "type", "default", "what it is"],
        (
            [", ".join(map(code, p.opts)), _type_of(p), _default_of(command, p), p.help or ""]
            for p in options
        ),
    )
    return page(
        f"## {name}",
        *_paragraphs(command),
        block("text", " ".join([name, "[options]", *map(_upper, arguments)])),
        told_of_arguments if arguments else "",
        told_of_options if options else "",
        "Example:",
        block("sh", example_of(name, command)),
    )


def _own_options(root: TyperGroup) -> Iterator[list[str]]:
    for option in root.params:
        if isinstance(option, TyperOption) and option.name not in _COMPLETION:
            yield [", ".join(map(code, option.opts)), option.help or ""]
    yield ["`--help`, `-h`", "Show the help of a command. Every command has this option."]


def _upper(argument: TyperArgument) -> str:
    return (argument.name or "").upper()


def _type_of(parameter: TyperArgument | TyperOption) -> str:
    if parameter.metavar:
        return code(parameter.metavar)
    if isinstance(parameter, TyperOption) and parameter.is_flag:
        return "flag"
    kind = str(parameter.type_descriptor.annotation.__name__)
    return TYPE_NAMES.get(kind, kind) + (", repeatable" if parameter.multiple else "")


def _default_of(command: TyperCommand | TyperGroup, option: TyperOption) -> str:
    if option.is_flag:
        return "off"
    if option.default is not None:
        return code(option.default)
    settings = {field.name: field.default for field in dataclasses.fields(SimSettings)}
    assert command.callback is not None
    # a command that calls `effective` reads missing options from the settings
    takes_settings = "effective" in inspect.unwrap(command.callback).__code__.co_names
    if takes_settings and option.name in settings:
        return f"`{settings[option.name]}` (`sim.{option.name}`)"
    return "none"
