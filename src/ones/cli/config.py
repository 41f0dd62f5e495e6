"""`ones config`: the effective settings and their origins."""

from __future__ import annotations

from collections.abc import Callable

from ones.cli.options import Json
from ones.cli.output import print_json, print_table, say
from ones.cli.settings import effective
from ones.errors import InvalidSettingError
from ones.extensions import SettingInfo


def config(json: Json = False) -> None:
    """Show the effective settings with the origin of each value, and the policies with theirs."""
    from ones import launchers, policies
    from ones.config import SECTIONS, settings_in
    from ones.launchers.registry import OURS, service_settings
    from ones.models.oracle import unavailable_oracle

    found = effective()
    given, of_launchers = found.settings.service.launchers, service_settings()
    values: dict[str, object] = {}
    help_of: dict[str, str] = {}
    for section in SECTIONS:
        for key, info in settings_in(section).items():
            help_of[f"{section}.{key}"] = info.help
            if section == "service" and key in of_launchers:
                chosen = given.get(of_launchers[key].launcher, {})
                values[f"{section}.{key}"] = chosen.get(info.name, info.default)
            else:
                values[f"{section}.{key}"] = getattr(getattr(found.settings, section), key)
    others = sorted({*launchers.names(), *given} - set(OURS))
    for name, infos in _settings_of(others, launchers.settings_of).items():
        for s in infos:
            help_of[f"launcher.{name}.{s.name}"] = s.help
            values[f"launcher.{name}.{s.name}"] = given.get(name, {}).get(s.name, s.default)
    origins = {key: found.origins.get(key, "default") for key in values}
    for name, settings in found.settings.policy.items():
        policies.create(
            name, oracle=unavailable_oracle, **settings
        )  # raises for values out of range
    of_policies = _settings_of(policies.names(), policies.settings_of)
    if json:
        print_json(
            {
                "settings": {
                    key: {"value": value, "origin": origins[key]} for key, value in values.items()
                },
                "policies": {
                    name: {
                        s.name: {
                            "value": found.settings.policy.get(name, {}).get(s.name, s.default),
                            "origin": found.origins.get(f"policy.{name}.{s.name}", "default"),
                        }
                        for s in known
                    }
                    for name, known in of_policies.items()
                },
            }
        )
        return
    rows: list[tuple[object, ...]] = [
        (key, str(value), origins[key], help_of[key]) for key, value in values.items()
    ]
    for name, infos in of_policies.items():
        for s in infos:
            key = f"policy.{name}.{s.name}"
            value = found.settings.policy.get(name, {}).get(s.name, s.default)
            rows.append((key, str(value), found.origins.get(key, "default"), s.help))
    print_table(None, ["setting", "value", "origin", "meaning"], rows)
    print(f"policies: {', '.join(of_policies)}")
    print(f"launchers: {', '.join((*OURS, *others))}")


def _settings_of(
    names: list[str], settings_of: Callable[[str], list[SettingInfo]]
) -> dict[str, list[SettingInfo]]:
    """Settings of extensions by name. One that cannot be imported is reported and left out."""
    found = {}
    for name in names:
        try:
            found[name] = settings_of(name)
        except InvalidSettingError as problem:
            say(f"ones: {problem}")
    return found
