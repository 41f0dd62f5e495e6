"""TLS without a certificate of the user: made once, for the right names, trusted by workers."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from ones.config import ServiceSettings
from ones.control import certificates
from ones.control.certificates import Pair, fingerprint, is_loopback, names_of, own_pair
from ones.control.server import insecurity
from tests.control.world import World
from tests.processes import wait_for

ONES = Path(sys.executable).with_name("ones")


def handshake(pair: Pair, name: str, authority: Path) -> None:
    """In memory: a client that trusts the authority calls a server by this name."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pair.certificate, pair.key)
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(back, there, server_hostname=name),
        server.wrap_bio(there, back, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


def test_a_pair_is_made_once_and_again_for_other_names(tmp_path: Path) -> None:
    names = {"head.example", "10.0.0.5", "localhost"}
    pair = own_pair(tmp_path / "tls", names)
    made = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    assert sorted(made) == ["authority.key", "authority.pem", "server.key", "server.pem"]
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in (tmp_path / "tls").iterdir())
    for name in names:
        handshake(pair, name, pair.authority)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(pair, "other.example", pair.authority)
    assert own_pair(tmp_path / "tls", {"head.example"}) == pair
    assert {p.name: p.read_bytes() for p in (tmp_path / "tls").iterdir()} == made, "no need to"
    own_pair(tmp_path / "tls", {*names, "other.example"})
    assert pair.authority.read_bytes() == made["authority.pem"], "clients trust the same one"
    assert pair.certificate.read_bytes() != made["server.pem"]
    handshake(pair, "other.example", pair.authority)
    stranger = own_pair(tmp_path / "other", names)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(stranger, "localhost", pair.authority)


def test_it_lasts_for_ten_years_and_is_made_again_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = own_pair(tmp_path, {"localhost"})
    known = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    assert (known.not_valid_after_utc - known.not_valid_before_utc).days == 3651
    monkeypatch.setattr(certificates, "RENEWED", certificates.VALID)
    before = pair.certificate.read_bytes()
    own_pair(tmp_path, {"localhost"})
    assert pair.certificate.read_bytes() != before


def test_names_are_those_at_which_it_can_be_called() -> None:
    assert {"10.0.0.5", "head.example", "localhost", "127.0.0.1"} <= names_of(
        "10.0.0.5", "head.example"
    )
    assert "0.0.0.0" not in names_of("0.0.0.0", "")
    assert not is_loopback("")
    assert is_loopback("localhost")


def test_only_what_others_can_reach_without_tls_is_warned_of() -> None:
    def warning(**settings: Any) -> str:
        return insecurity(ServiceSettings(**settings))

    assert "clear text" in warning(host="0.0.0.0", insecure=True)
    assert warning(host="0.0.0.0") == warning(insecure=True) == ""
    assert warning(host="0.0.0.0", insecure=True, tls_certificate="/c") == ""


def ones(world: World, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    given = {"ONES_SERVICE_STATE": str(world.dir.path), **env}
    return subprocess.run(
        [ONES, *words], capture_output=True, text=True, check=False, timeout=100, cwd=world.root,
        env={**os.environ, **given},
    )  # fmt: skip


def test_a_service_on_all_addresses_has_tls_and_its_workers_trust_it(
    make_world: Callable[..., World],
) -> None:
    world = make_world(host="0.0.0.0")
    url = str(world.http.base_url)
    assert url.startswith("https://127.0.0.1:")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{url}/health")
    job = world.submit(2, 0.1)
    card = world.wait_end(job)
    assert (card["state"], card["epochs"]) == ("finished", 2), world.output(job)
    assert ones(world, "ps", "-a").returncode == 0, "of the same machine and user"
    env = {"ONES_URL": url.rstrip("/"), "ONES_API_TOKEN": world.dir.read_token() or ""}
    stranger = ones(world, "ps", **env)
    assert "the service's certificate is not trusted" in stranger.stderr
    assert ones(world, "ps", **env, SSL_CERT_FILE=str(world.dir.authority)).returncode == 0
    world.restart()
    assert world.get("/health")["ok"], "with the same authority"


@contextmanager
def up(state: Path, *words: str) -> Iterator[subprocess.CompletedProcess[str]]:
    """`ones up`, and down again."""
    env = {**os.environ, "ONES_SERVICE_STATE": str(state)}
    command = [str(ONES), "up", "--slots", "1", "--port", "0", "--policy", "fifo", *words]
    try:
        yield subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=100, env=env
        )
    finally:
        subprocess.run([ONES, "down"], env=env, check=True, timeout=100, capture_output=True)


def test_up_says_how_other_machines_trust_it(tmp_path: Path) -> None:
    with up(tmp_path, "--host", "0.0.0.0") as started:
        assert started.returncode == 0, started.stderr
        authority = tmp_path / "tls" / "authority.pem"
        assert f"{authority} (SHA-256 {fingerprint(authority.read_text())})" in started.stdout
        assert "set SSL_CERT_FILE to it" in started.stdout
        assert "/login?code=" in started.stdout


def test_up_without_tls_says_what_that_means(tmp_path: Path) -> None:
    with up(tmp_path, "--host", "0.0.0.0", "--insecure") as started:
        assert started.returncode == 0, started.stderr
        assert "ONES is up: http://127.0.0.1:" in started.stdout
        told = "tokens and environments of jobs reach 0.0.0.0 in clear text"
        assert started.stderr.count(told) == 1
        assert not (tmp_path / "tls").exists()


def test_a_link_that_logs_in_is_not_written_to_a_journal(tmp_path: Path) -> None:
    command = [str(ONES), "up", "--foreground", "--slots", "1", "--port", "0", "--policy", "fifo"]
    with (tmp_path / "journal").open("wb") as journal:
        process = subprocess.Popen(
            [*command, "--state", str(tmp_path / "state")], stdout=journal, stderr=journal
        )
    try:
        wait_for(lambda: b"web page" in (tmp_path / "journal").read_bytes(), "not up", 90.0)
        told = (tmp_path / "journal").read_text()
        assert "web page: get a login link with: ones link" in told
        assert "code=" not in told
    finally:
        process.terminate()
        process.wait(60)
