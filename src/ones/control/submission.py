"""The part of a user's request that the scheduler does not need: how to start a job's processes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from ones.wire.bounds import Seconds, Tagged
from ones.wire.decoding import Decoder
from ones.wire.encoding import to_json


class Submission(Tagged, frozen=True, kw_only=True):
    name: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: whether the script calls `ones.join`; None: unknown; False: one process for all GPUs
    elastic: bool | None = None
    max_run_seconds: Seconds | None = None
    fixed_batch: bool = False  # the batch is the requested one, or else the script's own
    tags: tuple[str, ...] = ()
    git: str = ""  # commit, and whether files differ from it
    snapshot: str = ""  # SHA-256 of the archive of its code; empty: the files in `cwd` are used
    root: str = ""  # the directory that was packed: `cwd` or one above it
    unix: str = ""  # Unix user that the job runs as; empty: the user of the service
    files: Mapping[str, str] = field(default_factory=dict)  # path -> sha256 at submission

    def __repr__(self) -> str:  # without the environment, which may hold secrets
        return f"Submission(name={self.name!r}, argv={self.argv!r}, cwd={self.cwd!r})"

    def encoded(self) -> str:
        return to_json(self)

    @classmethod
    def decoded(cls, text: str) -> Submission:
        return _DECODER.decode(text)


_DECODER: Decoder[Submission] = Decoder(Submission, logs=True)

#: prefixes of variables of a session or a service, which a training process does not get
NOT_PASSED = ("ONES_", "SSH_", "DBUS_", "XDG_SESSION", "SUDO_")


#: variables with such a prefix that users may set
PASSED = ("ONES_CHECKPOINT_SECONDS", "ONES_HANG_SECONDS")


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without variables that ONES sets or that a training process does not need."""
    return {k: v for k, v in env.items() if k in PASSED or not k.startswith(NOT_PASSED)}
