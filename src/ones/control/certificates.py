"""TLS certificates for a service that was given none, signed by an authority of its own.

The authority (`tls/authority.pem`) is made at the first start and is valid for ten years; clients
trust it. The certificate is made again when the names of the service change.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ones.errors import WorldError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

VALID = timedelta(days=3650)
#: a certificate that expires sooner is made again
RENEWED = timedelta(days=30)
_BEFORE = timedelta(days=1)  # clocks of other machines may be behind
WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Pair:
    certificate: Path
    key: Path
    authority: Path  # certificate that clients trust


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a service that listens on `host`.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "0.0.0.0", "10.0.0.5")]
    [True, True, False, False]
    """
    if host in WILDCARDS:
        return False
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False  # binding to this host fails later, with a better message
    return all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in found)


def names_of(host: str, advertise: str) -> set[str]:
    """Names and addresses at which clients may reach a service that listens on `host`."""
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn(), advertise}
    if host in WILDCARDS:
        names |= _own_addresses()
    else:
        names.add(host)
    return {name for name in names if name}


def _own_addresses() -> set[str]:
    import psutil

    kinds = (socket.AF_INET, socket.AF_INET6)
    return {
        found.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for found in addresses
        if found.family in kinds
    }


def own_pair(directory: Path, names: Iterable[str]) -> Pair:
    """The certificate of this service for these names; made if missing, outdated or expiring."""
    wanted = set(names)
    pair = Pair(directory / "server.pem", directory / "server.key", directory / "authority.pem")
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        if not pair.authority.exists():
            _make_authority(directory)
        if not _is_valid(pair, wanted):
            _make_certificate(directory, pair, wanted)
    except OSError as problem:
        raise WorldError(f"{problem.filename}: {problem.strerror}") from problem
    return pair


def fingerprint(certificate: str) -> str:
    """SHA-256 of a certificate (PEM), as `openssl x509 -fingerprint -sha256` prints it."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def _is_valid(pair: Pair, names: set[str]) -> bool:
    from cryptography import x509

    try:
        known = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        extension = known.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    covered = {str(name.value) for name in extension.value}
    is_fresh = known.not_valid_after_utc - datetime.now(UTC) > RENEWED
    return is_fresh and pair.key.exists() and {str(n.value) for n in _names(names)} <= covered


def _make_authority(directory: Path) -> None:
    from cryptography import x509

    key = _new_key()
    name = _name(f"ONES authority of {socket.gethostname()}")
    made = _builder(name, name, key.public_key())
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(_usage(signs_others=True), critical=True)
    _write_key(directory / "authority.key", key)
    _write(directory / "authority.pem", _signed(made, key))


def _make_certificate(directory: Path, pair: Pair, names: set[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = x509.load_pem_x509_certificate(pair.authority.read_bytes())
    signer = load_pem_private_key((directory / "authority.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = _new_key()
    made = _builder(_name("ONES"), authority.subject, key.public_key())
    made = made.add_extension(x509.SubjectAlternativeName(_names(names)), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(_usage(signs_others=False), critical=True)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    made = made.add_extension(purpose, critical=False)
    _write_key(pair.key, key)
    _write(pair.certificate, _signed(made, signer))


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _names(names: set[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for name in sorted(names):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_others: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_others,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(made: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = made.add_extension(issuer, critical=False)
    return made.sign(signer, SHA256()).public_bytes(Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    beside.replace(path)
