"""``POST /v1/models/{problem}/{name}``: rows for a further model of the live bundle in, its answers out."""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_ROWS = 10_000

Row = list[float]
Rows = Annotated[list[Row], msgspec.Meta(min_length=1)]


class ModelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body: what the model is asked, port by port as its spec in the manifest says."""

    inputs: Annotated[dict[str, Rows], msgspec.Meta(min_length=1)]
    """Port -> rows, as many of each, at most ``MOST_ROWS``; a row has the port's columns in their order."""


class ModelResponse(msgspec.Struct, frozen=True):
    """Answer: what the model of the live bundle says of each row."""

    digest: str
    """Of the bundle that the model came with: the live policy's."""
    output: list[Row]
    """One row each; numbers are float32, written out so that reading them gives the same bits."""
    unit: str
