"""`ones config`: the settings in force, and where each comes from."""

from __future__ import annotations

from dataclasses import asdict, fields

from ones.cli.options import Json
from ones.cli.output import print_json, print_table, say
from ones.cli.settings import effective
from ones.errors import InvalidSettingError


def config(json: Json = False) -> None:
    """Show the effective settings with the origin of each value, and the policies with theirs."""
    from ones.config import SECTIONS
    from ones.models.oracle import unavailable_oracle
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
        create(name, oracle=unavailable_oracle, **given)  # refuses what is out of range
    policies = {}
    for name in names():
        try:
            policies[name] = settings_of(name)
        except InvalidSettingError as problem:  # it shall not hide the others
            say(f"ones: {problem}")
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
