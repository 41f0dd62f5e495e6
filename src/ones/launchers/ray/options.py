"""How a Ray cluster is reached, and what of it is ours."""

from __future__ import annotations

from dataclasses import dataclass

#: beyond a lease, until nothing can run any more: clocks of two machines, what a renewal takes
MARGIN_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    address: str  # of the head, as host:port
    instance: str  # names our managers among those of other services on the cluster
    slots: str = "GPU"  # the resource that is counted: GPU, or the name of a custom one
    per_node: int | None = None  # take at most so many of each node
    node_dir: str = "/tmp/ones"  # run directories on each node
    lease_seconds: float = 30.0
    token_file: str = ""  # with it, token authentication
    tls_certificate: str = ""  # with these three, TLS between all parts of Ray
    tls_key: str = ""
    tls_ca: str = ""
    controller: str = ""  # URL that workers will call: each node tries it
    shared: str = ""  # a directory, by path or URL, that each node must see

    def environment(self) -> dict[str, str]:
        """What Ray reads at its start. In full: its defaults differ from version to version."""
        found = {
            "RAY_AUTH_MODE": "token" if self.token_file else "disabled",
            "RAY_USE_TLS": "1" if self.tls_certificate else "0",
        }
        if self.token_file:
            found["RAY_AUTH_TOKEN_PATH"] = self.token_file
        if self.tls_certificate:
            found["RAY_TLS_SERVER_CERT"] = self.tls_certificate
            found["RAY_TLS_SERVER_KEY"] = self.tls_key
            found["RAY_TLS_CA_CERT"] = self.tls_ca
        return found
