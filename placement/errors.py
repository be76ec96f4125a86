"""The service's branch of the error tree."""

from __future__ import annotations

from sched_env.errors import LoadmasterError


class PushRefusedError(LoadmasterError):
    """Raised when a pushed bundle is refused; the live policy stays as it was."""


class StoreError(LoadmasterError):
    """Raised when the policy store cannot be read or written."""
