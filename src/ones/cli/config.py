"""`ones config`: the settings in force, and where each comes from."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated

import typer

from ones.cli.output import JSON_HELP, print_json, print_table
from ones.cli.settings import effective


def config(json: Annotated[bool, typer.Option("--json", help=JSON_HELP)] = False) -> None:
    """Show the effective settings with the origin of each value, and the policies with theirs."""
    from ones.config import SECTIONS
    from ones.models.oracle import unasked
    from ones.policies import create, names, settings_of

    found = effective()
    values = {
        f"{section}.{key}": value
        for section in SECTIONS
        for key, value in asdict(getattr(found.settings, section)).items()
    }
    help_of = {
        f"{section}.{f.name}": f.metadata["help"]
        for section, settings in SECTIONS.items()
        for f in fields(settings)
    }
    for name, given in found.settings.policy.items():
        create(name, oracle=unasked, **given)  # refuses what is out of range
    policies = {name: settings_of(name) for name in names()}
    if json:
        print_json(
            {
                "settings": {
                    key: {"value": value, "origin": found.origins[key]}
                    for key, value in values.items()
                },
                "policies": {
                    name: {
                        s.name: {
                            "value": found.settings.policy.get(name, {}).get(s.name, s.default),
                            "origin": found.origins.get(f"policy.{name}.{s.name}", "default"),
                        }
                        for s in known
                    }
                    for name, known in policies.items()
                },
            }
        )
        return
    rows: list[tuple[object, ...]] = [
        (key, str(value), found.origins[key], help_of[key]) for key, value in values.items()
    ]
    for name, known in policies.items():
        for s in known:
            key = f"policy.{name}.{s.name}"
            value = found.settings.policy.get(name, {}).get(s.name, s.default)
            rows.append((key, str(value), found.origins.get(key, "default"), s.help))
    print_table(None, ["setting", "value", "origin", "what it is"], rows)
    print(f"policies: {', '.join(policies)}")
