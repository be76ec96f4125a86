"""Parameters from ``params.yaml`` and places from the environment: typed, read once, named with their units."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from pipeline import paths
from wire import environment
from wire.errors import ConfigError, legal

T = TypeVar("T")

PARAMS_FILE = paths.PARAMS

VAR_ENV = environment.VAR


def load(section: str, kind: type[T], path: Path = PARAMS_FILE, *, default: T | None = None) -> T:
    """Decode one section of a parameter file; an unknown or mistyped key is an error that names it.

    Args:
        section: Dotted name of the section, e.g. ``train`` or ``evaluate.functions``.
        kind: A ``msgspec.Struct`` with ``forbid_unknown_fields``.
        path: The parameter file.
        default: Used where the file has no such section, as one of the release before; None: that is an error.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", fix="run from the repository's root, or pass --params") from error
    except (yaml.YAMLError, ValueError) as error:  # an unquoted 2026-13-05 is a ValueError
        raise ConfigError(f"{path} is not YAML: {error}") from error
    value: object = document
    for depth, key in enumerate(section.split(".")):
        if default is not None and isinstance(value, dict) and key not in value:
            return default
        if not isinstance(value, dict) or key not in value:
            within = ".".join(section.split(".")[:depth]) or "the file"
            keys = value.keys() if isinstance(value, dict) else ()
            raise ConfigError(f"{path}: section {section!r} is missing", f"in {within} {legal(keys)}")
        value = value[key]
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        fields = getattr(kind, "__struct_fields__", ())
        raise ConfigError(f"{path}: section {section!r}: {error}", f"keys {', '.join(fields)}") from error


def var() -> Path:
    """Where state that outlives a run is kept."""
    return environment.var().absolute()
