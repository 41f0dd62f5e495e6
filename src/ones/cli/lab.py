"""`ones lab`: print what an administrator runs to share a machine among several Unix users."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ones.errors import UserError

lab = typer.Typer(
    no_args_is_help=True,
    help="Share a machine among Unix users: print scripts for root, to read and run with sh.",
)

PROGRAM = "/usr/local/libexec/ones-launchd"
CONFIG = "/etc/ones/launchd.conf"
_UNIT = """[Unit]
Description=ONES: starts jobs as their Unix users

[Service]
ExecStart=/usr/bin/python3 -I {program} {config}
KillMode=process
Restart=always
Slice=system.slice

[Install]
WantedBy=multi-user.target
"""
_SERVICE_UNIT = """[Unit]
Description=ONES
After=network.target ones-launchd.service
Requires=ones-launchd.service

[Service]
User={service}
WorkingDirectory=/var/lib/ones/service
Environment=ONES_SERVICE_STATE=/var/lib/ones/service ONES_SERVICE_LAUNCHD=/run/ones/launchd.sock
ExecStart={ones} up --foreground
KillMode=process
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""


@lab.command()
def install(
    user: Annotated[
        list[str], typer.Option(help="Unix user, or @group, that jobs may run as; repeatable.")
    ],
    service: Annotated[str, typer.Option(help="Unix user that the service runs as.")] = "ones",
) -> None:
    """Print the script that installs ones-launchd. Read it, then give it to a shell of root.

    Example: ones lab install --user ann --user bob
    """
    from ones.exec import launchd

    for name in (service, *(name.removeprefix("@") for name in user)):
        if not launchd.is_name(name):
            raise UserError(f"user: {name!r} is not the name of a Unix user or @group")
    source = Path(launchd.__file__).read_text(encoding="utf-8")
    ones = Path(sys.executable).with_name("ones")
    config = f"[launchd]\nservice = {service}\nusers = {' '.join(user)}\n"
    unit = _UNIT.format(program=PROGRAM, config=CONFIG)
    service_unit = _SERVICE_UNIT.format(service=service, ones=ones)
    print("#!/bin/sh\n# Installs ones-launchd. Run it as root.\nset -eu\n")
    print(f"getent passwd {service} >/dev/null || useradd --system --user-group"
          f" --home-dir /var/lib/ones/service --shell /usr/sbin/nologin {service}")  # fmt: skip
    print("install -d -m 0755 /etc/ones /usr/local/libexec /var/lib/ones /var/lib/ones/jobs")
    print(f"install -d -m 0700 -o {service} -g {service} /var/lib/ones/service")
    _print_file(PROGRAM, source, "0755")
    print(f"[ -e {CONFIG} ] && echo '{CONFIG}: kept as it is' || {{")
    _print_file(CONFIG, config, "0644")
    print("}")
    _print_file("/etc/systemd/system/ones-launchd.service", unit, "0644")
    _print_file("/etc/systemd/system/ones.service", service_unit, "0644")
    print("if [ -d /run/systemd/system ]; then")
    print("    systemctl daemon-reload\n    systemctl enable --now ones-launchd.service")
    print("    systemctl restart ones-launchd.service\nfi")
    print("echo 'ones-launchd is installed; users are listed in " + CONFIG + "'")


def _print_file(path: str, text: str, mode: str) -> None:
    """A command that writes a file of root, complete or not at all."""
    beside = shlex.quote(f"{path}.new")
    print(f"cat > {beside} <<'END-OF-FILE'\n{text.rstrip()}\nEND-OF-FILE")
    print(f"chown root:root {beside}\nchmod {mode} {beside}\nmv {beside} {shlex.quote(path)}")


@lab.command()
def uninstall() -> None:
    """Print the script that removes ones-launchd. Files of jobs stay in /var/lib/ones.

    Example: ones lab uninstall
    """
    print(
        "#!/bin/sh\n# Removes ones-launchd. Stop the service first: its jobs end with it.\nset -u\n"
        "if [ -d /run/systemd/system ]; then\n"
        "    systemctl disable --now ones.service ones-launchd.service\nfi\n"
        f"rm -f {PROGRAM} {CONFIG} /etc/systemd/system/ones-launchd.service"
        " /etc/systemd/system/ones.service\n"
        "[ -d /run/systemd/system ] && systemctl daemon-reload\n"
        "rmdir /etc/ones 2>/dev/null\n"
        "echo 'ones-launchd is removed; files of jobs are left in /var/lib/ones'"
    )
