"""Settings of the Ray launcher, and the options of its driver process."""

from __future__ import annotations

from dataclasses import dataclass

from ones.extensions import setting

#: added to a lease before its workers count as ended: clock differences, duration of a renewal
MARGIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    address: str = setting(
        "", "head of the Ray cluster: host:port", option="--address", metavar="HOST:PORT"
    )
    slots: str = setting(
        "GPU",
        "Ray resource that counts as one slot: GPU or a custom one",
        option="--ray-slots",
        metavar="NAME",
    )
    per_node: int | None = setting(None, "maximum number of slots to use on each Ray node")
    token: str = setting(
        "", "file with the Ray cluster's token", option="--ray-token", metavar="FILE", path=True
    )
    tls_certificate: str = setting("", "PEM file of a certificate; turns Ray's TLS on", path=True)
    tls_key: str = setting("", "PEM file of that certificate's key", path=True)
    tls_ca: str = setting("", "PEM file of the authority that signs for Ray's nodes", path=True)
    node_dir: str = setting(
        "/tmp/ones", "run directories on each node of a cluster", setting="node_dir"
    )
    lease_seconds: float = setting(
        30.0,
        "seconds after which the workers of a node that is cut off end",
        setting="lease_seconds",
    )

    def __post_init__(self) -> None:
        tls = (self.tls_certificate, self.tls_key, self.tls_ca)
        if any(tls) and not all(tls):
            raise ValueError("Ray's TLS needs all of tls_certificate, tls_key and tls_ca")

    @property
    def slot_resource(self) -> str:
        """Name of the Ray resource of which one unit is one slot."""
        return self.slots

    def environment(self) -> dict[str, str]:
        """Variables that Ray reads at its start; all are set: defaults differ between versions."""
        found = {
            "RAY_AUTH_MODE": "token" if self.token else "disabled",
            "RAY_USE_TLS": "1" if self.tls_certificate else "0",
        }
        if self.token:
            found["RAY_AUTH_TOKEN_PATH"] = self.token
        if self.tls_certificate:
            found["RAY_TLS_SERVER_CERT"] = self.tls_certificate
            found["RAY_TLS_SERVER_KEY"] = self.tls_key
            found["RAY_TLS_CA_CERT"] = self.tls_ca
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions(RaySettings):
    instance: str  # distinguishes this service's agents from others on the cluster
    controller: str = ""  # URL that workers call; each node checks that it is reachable
    shared: str = ""  # directory, by path or URL, that each node must see
