"""Compares the service's policy store on this machine, if there is one, with what the records say is live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.contracts.record import PromotionRecord
from pipeline.registering import bundles, places
from pipeline.registering.chain import Chain
from pipeline.registering.records import Finding


def findings(chain: Chain) -> Iterator[Finding]:
    """List where the store and the records disagree."""
    for problem in sorted({record.problem for record in chain.records}):
        path = places.store() / problem / "live.json"
        if not path.exists():
            continue
        expected = [record for record in (chain.live(problem), chain.pending(problem)) if record]
        try:
            pointer: dict[str, Any] = json.loads(path.read_bytes())
            said = (str(pointer["digest"]), int(pointer["counter"]))
        except (ValueError, KeyError, TypeError) as error:
            yield Finding(str(path), f"not a pointer ({error!r})")
            continue
        match = [record for record in expected if (record.digest, record.counter) == said]
        if not match:
            wanted = " or ".join(f"{record.digest} (counter {record.counter})" for record in expected) or "nothing"
            yield Finding(str(path), f"says {said[0]} (counter {said[1]}) is live, the records say {wanted}")
        else:
            yield from _bundle(chain, match[0], path.parent)


def _bundle(chain: Chain, record: PromotionRecord, folder: Path) -> Iterator[Finding]:
    directory = folder / "bundles" / places.bundle(record.digest).name
    approved = chain.approved(record.problem, record.digest)
    if not directory.is_dir():
        yield Finding(str(directory), "missing: the live bundle is not in the store")
    elif approved is not None and bundles.files_sha256(directory) != approved.bundle_sha256:
        yield Finding(str(directory), f"not the bytes that record {approved.sequence} approved")
