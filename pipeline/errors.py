"""The pipeline's branch of the error tree."""

from __future__ import annotations

from wire.errors import LoadmasterError


class DataError(LoadmasterError):
    """Raised when raw data or windows cannot be used: names table, rule, count and examples."""


class SourceError(LoadmasterError):
    """Raised when a metrics source cannot be reached or answers with nonsense."""


class GateError(LoadmasterError):
    """Raised when the gate cannot give a verdict (missing evaluation, rules that do not parse)."""


class RegistryError(LoadmasterError):
    """Raised when the registry is inconsistent, busy, or refuses a promotion."""


class PushError(LoadmasterError):
    """Raised when the placement service refuses or does not answer a push."""
