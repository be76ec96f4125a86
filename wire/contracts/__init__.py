"""What crosses a process boundary: feature spec, bundle, the service's API, decision log, promotion and replay.

Both sides of a wire need these, and ``pipeline`` and ``placement`` may not import each other, so they live here,
below both. Documents are ``msgspec`` structs: one definition gives the type, the strict decoder and the JSON Schema.
The schemas are committed under ``docs/contracts/``; a test holds code and files together, so that a change of
contract is seen in review. Each document carries ``schema``, raised when an old reader would misread a new writer.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from wire.errors import ContractError

Document = TypeVar("Document", bound=msgspec.Struct)


def decode(data: bytes, kind: type[Document], *, source: str) -> Document:
    """Decode JSON strictly; the error names the source, the path inside the document and the reason."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ContractError(f"{source}: {error}", f"a {kind.__name__} document (docs/contracts/)") from error


def encode(document: msgspec.Struct) -> bytes:
    """Encode canonically: sorted keys, no blanks. Equal documents give equal bytes, so bytes can be hashed."""
    return msgspec.json.encode(document, order="sorted")
