"""What the operations guide says, done: TLS by two settings, and the unit of systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.control.test_training import SLOW, hurry, submit
from tests.control.world import World, anyone
from tests.processes import wait_for

GUIDE = Path(__file__).parents[2] / "docs" / "operations.md"
ONES = Path(sys.executable).with_name("ones")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate with")
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=ones", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=place, check=True, capture_output=True,
    )  # fmt: skip
    return place / "cert.pem", place / "key.pem"


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[World]:
    cert, key = map(str, certificate)
    root = tmp_path_factory.mktemp("world")
    world = World(root, tls_certificate=cert, tls_key=key)
    world.trust = cert
    world.up()
    yield world
    world.down()


def ones(world: World, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {"ONES_SERVICE_STATE": str(world.dir.path), **env}
    return subprocess.run(
        [ONES, *words], capture_output=True, text=True, check=False, timeout=300, cwd=world.root,
        env={**os.environ, **given},
    )  # fmt: skip


def test_users_workers_and_commands_speak_tls(world: World) -> None:
    url = str(world.http.base_url)
    assert url.startswith("https://")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        anyone("GET", f"{url}/health")
    with pytest.raises(httpx.RemoteProtocolError):
        anyone("GET", f"{url.replace('https', 'http')}/health")
    job = world.submit(2, 0.1)
    card = world.wait_end(job)
    assert (card["state"], card["epochs"]) == ("finished", 2), world.output(job)
    trusted = ones(world, "ps", "-a", ONES_SERVICE_TLS_CERTIFICATE=world.trust)
    assert (trusted.returncode, job in trusted.stdout) == (0, True), trusted.stderr
    assert ones(world, "ps", SSL_CERT_FILE=world.trust).returncode == 0
    stranger = ones(world, "ps")
    assert stranger.returncode == 1
    assert "the service's certificate is not trusted" in stranger.stderr
    link = world.post("/api/link")["url"]
    cookie = anyone("GET", link, verify=world.context()).headers["set-cookie"].lower()
    assert "secure" in cookie


@pytest.mark.slow
def test_real_training_reports_over_tls(world: World) -> None:
    hurry(world)
    job = submit(world, 3)
    card = world.wait_end(job, seconds=SLOW)
    assert (card["state"], card["epochs"]) == ("finished", 3), world.output(job)


def test_half_a_pair_or_a_wrong_one_is_refused_by_name(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = map(str, certificate)
    for settings, words in (
        ({"tls_certificate": cert}, "tls_key: missing; a certificate needs its key"),
        ({"tls_certificate": key, "tls_key": cert}, f"tls_certificate: {key}, {cert}: "),
        ({"tls_certificate": "/no/cert", "tls_key": key}, "No such file or directory"),
    ):
        world = World(tmp_path, **settings)
        with pytest.raises(AssertionError, match=words):
            world.up()
        assert world.process is not None
        wait_for(world.has_died)
        assert world.process.returncode == 2


def test_the_unit_of_systemd_is_one(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    unit = GUIDE.read_text(encoding="utf-8").split("```ini\n")[1].split("```")[0]
    assert "ExecStart=/opt/ones/bin/ones up --foreground" in unit
    path = tmp_path / "ones.service"
    path.write_text(unit.replace("/opt/ones/bin/ones", str(ONES)))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")
    broken = tmp_path / "broken.service"
    broken.write_text(unit.replace("/opt/ones/bin/ones", "/no/such/program"))
    refused = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(broken)], capture_output=True, check=False
    )
    assert refused.returncode != 0, "or the test above says nothing"
