"""config.md: the settings of the commands, the service and each policy."""

from __future__ import annotations

import dataclasses
from functools import reduce
from operator import getitem

from docs.reference.markdown import EXAMPLES, TYPE_NAMES, block, code, page, table
from ones import config
from ones.policies import names, settings_of


def config_page() -> str:
    file = EXAMPLES / config.FILE_NAME
    shown = {"ONES_SIM_GPUS": "32"}
    effective = config.load(shown, EXAMPLES)
    values = dataclasses.asdict(effective.settings)
    return page(
        "# Settings",
        "Each value comes from the last of these that names it:",
        "1. the default;\n"
        f"2. a file in TOML: the one that `ONES_CONFIG` names, or else `{config.FILE_NAME}` in the "
        "working directory;\n"
        "3. a variable of the environment;\n"
        "4. an option of the command.",
        "`ones config` shows the current values and the origin of each. An unknown section, "
        "setting or variable is refused; the error names the most similar known one.",
        "## Simulation",
        "Section `[sim]`: defaults of `ones sim`, `ones trace generate` and `ones trace inspect`.",
        _section("sim"),
        "## Service",
        "Section `[service]`: the live service, and where commands find it.",
        _section("service"),
        "## Launchers",
        "Section `[launcher.NAME]`: settings of a launcher of another package, or of a file (its "
        "path is its name).\nThose of `ray` and `slurm` are in `[service]`.",
        "## Policies",
        "Section `[policy.NAME]`, or `--set KEY=VALUE` on the command line. They have no variables "
        "of the environment.",
        *(_policy_settings(name) for name in names()),
        "## Example",
        block("toml", file.read_text(encoding="utf-8")),
        "With this file in the working directory and `ONES_SIM_GPUS=32` in the environment, the "
        "settings that are not at their default are:",
        table(
            ["setting", "value", "origin"],
            (
                [code(name), code(reduce(getitem, name.split("."), values)), origin]
                for name, origin in effective.origins.items()
                if origin != "default"
            ),
        ),
        "## Other variables",
        table(
            ["variable", "what it is"],
            [
                ["`ONES_CONFIG`", "the path of the settings file"],
                ["`ONES_TRACEBACK`", "if set, a bug shows where in the code it arose"],
            ],
        ),
    )


def _section(name: str) -> str:
    return table(
        ["setting", "type", "default", "variable", "what it is"],
        (
            [
                code(f"{name}.{key}"),
                TYPE_NAMES[info.type.removesuffix(" | None")],
                code(info.default) if info.default not in ("", None) else "-",
                code(f"{config.PREFIX}{name.upper()}_{key.upper()}"),
                info.help,
            ]
            for key, info in config.settings_in(name).items()
        ),
    )


def _policy_settings(name: str) -> str:
    settings = settings_of(name)
    rows = (
        [code(f"policy.{name}.{s.name}"), TYPE_NAMES.get(s.type, s.type), code(s.default), s.help]
        for s in settings
    )
    settings_table = table(["setting", "type", "default", "what it is"], rows)
    return page(f"### {name}", settings_table if settings else "It has no settings.")
