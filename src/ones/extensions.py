"""Extension points: classes by name, from this package, an installed package or a file.

A policy or a launcher is named in one of three ways: a built-in name, the name of an entry point of
an installed package, or the path of a Python file that holds one such class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError, described

SUFFIX = ".py"


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One field of the `Settings` class of an extension."""

    name: str
    type: str
    default: object
    help: str
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)


def setting(default: Any, help: str, **metadata: Any) -> Any:  # noqa: ANN401  # as `field`
    """A field of a `Settings` class, with its help text and further metadata."""
    return field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionPoint:
    """One kind of extension and where its classes are found: those that have `method`."""

    kind: str  # name of the kind in messages: "policy"
    plural: str
    group: str  # of entry points
    method: str
    ours: Mapping[str, str]  # classes of this package: name -> "module:Class"

    def names(self) -> list[str]:
        """The names of this package and of installed packages."""
        return sorted({*self.ours, *self._entry_points()})

    def find(self, name: str) -> Callable[..., Any]:
        """The class of that name or file. Raises UnknownNameError with the known names."""
        if name in self.ours:
            return load(self.ours[name])
        if name.endswith(SUFFIX):
            return self._in_file(name)
        found = self._entry_points()
        if name not in found:
            raise UnknownNameError(self.kind, name, self.names())
        try:
            loaded: Callable[..., Any] = found[name].load()
        except Exception as problem:  # a module of another package may raise anything
            text = f"{self.kind} {name!r} ({found[name].value}): {described(problem)}"
            raise InvalidSettingError(text) from problem
        return loaded

    def check_settings(self, name: str, given: Mapping[str, object]) -> None:
        """Raise UnknownNameError for a setting that this extension does not have."""
        known = {setting.name for setting in settings_of(self.find(name))}
        for key in given:
            if key not in known:
                raise UnknownNameError(f"setting of {self.kind} {name}", key, known)

    def _entry_points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _in_file(self, name: str) -> Callable[..., Any]:
        module = _import_file(Path(located(name)), name)
        found = [
            value
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
            if not key.startswith("_") and hasattr(value, self.method)
        ]
        if not found:
            text = f"has no {self.kind}: a class with a method `{self.method}`"
            raise InvalidFileError(name, text)
        if len(found) > 1:
            several = ", ".join(sorted(value.__name__ for value in found))
            text = f"has several {self.plural} ({several}); prefix all but one with _"
            raise InvalidFileError(name, text)
        return found[0]


def located(name: str) -> str:
    """The name, or the absolute path of a file: the service runs in another directory."""
    return str(Path(name).expanduser().resolve()) if name.endswith(SUFFIX) else name


def settings_of(extension: object) -> list[SettingInfo]:
    """The fields of the extension's class `Settings`; none if it has no such class."""
    settings: Any = getattr(extension, "Settings", None)
    return infos_of(settings) if settings is not None else []


def infos_of(settings: Any) -> list[SettingInfo]:  # noqa: ANN401  # a dataclass
    return [
        SettingInfo(
            f.name,
            f.type if isinstance(f.type, str) else f.type.__name__,
            None if f.default is MISSING else f.default,
            str(f.metadata.get("help", "")),
            f.metadata,
        )
        for f in fields(settings)
    ]


def load(path: str) -> Callable[..., Any]:
    """The attribute that `module:attribute` names.

    >>> load("collections:OrderedDict").__name__
    'OrderedDict'
    """
    module, attribute = path.split(":")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def _import_file(path: Path, name: str) -> ModuleType:
    """The module of a file, imported once whatever path names it."""
    # dataclasses look their module up by its name, and two files may have the same stem
    known_as = f"ones_extension_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if known_as in sys.modules:
        return sys.modules[known_as]
    spec = spec_from_file_location(known_as, path)
    assert spec is not None  # by its suffix
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[known_as] = module
    try:
        spec.loader.exec_module(module)
    except OSError as problem:
        del sys.modules[known_as]
        raise InvalidFileError(name, f"cannot be read: {problem.strerror}") from problem
    except Exception as problem:  # a file of the user may raise anything
        del sys.modules[known_as]
        raise InvalidFileError(name, described(problem)) from problem
    return module
