"""The service's branch of the error tree."""

from __future__ import annotations

from typing import Any, Literal

from wire.errors import LoadmasterError

RefusalCode = Literal[
    "token",
    "frozen",
    "cool_down",
    "precondition",
    "counter",
    "size",
    "archive",
    "record",
    "signature",
    "bundle",
    "trial",
    "store",
]
"""The step of a push that said no; the label of the refused-pushes metric."""

FallbackReason = Literal["no_policy", "deadline", "nan", "error"]
"""Why the heuristic answered; the label of the fallback metric."""


class PushRefusedError(LoadmasterError):
    """Raised when a pushed bundle is refused; the live policy stays as it was."""

    def __init__(self, code: RefusalCode, status: int, found: str, expected: str = "", fix: str = "") -> None:
        super().__init__(found, expected, fix)
        self.code, self.status = code, status

    @classmethod
    def because(cls, code: RefusalCode, error: LoadmasterError, status: int = 422) -> PushRefusedError:
        """Refuse with the words of the step that failed."""
        return cls(code, status, error.found, error.expected, error.fix)


class StoreError(LoadmasterError):
    """Raised when the policy store cannot be read or written."""


class StoreLockedError(StoreError):
    """Raised when another process serves the store: the one damage that a service does not start with."""


class PlaceRefusedError(LoadmasterError):
    """Raised when a placement request cannot be understood; carries the HTTP status to answer with."""

    def __init__(self, status: int, found: str, expected: str = "", fix: str = "") -> None:
        super().__init__(found, expected, fix)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it travel between processes: large bodies are read in one of their own."""
        return type(self), (self.status, self.found, self.expected, self.fix)


class PolicyFailedError(LoadmasterError):
    """Raised when the policy gave no usable scores; the fallback heuristic answers instead."""

    def __init__(self, reason: FallbackReason, found: str) -> None:
        super().__init__(found)
        self.reason: FallbackReason = reason
