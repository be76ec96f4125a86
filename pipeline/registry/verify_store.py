"""Compares the service's policy store on this machine, if there is one, with what the records say is live."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.registry import bundles, places
from pipeline.registry.chain import Chain
from pipeline.registry.records import FLIPS, Finding, changes
from sched_env import problems
from wire.errors import BundleError


def findings(chain: Chain) -> Iterator[Finding]:
    """List where the store and the records disagree."""
    for problem in problems.names():
        path = places.store() / problem / "live.json"
        live, changed = chain.live(problem), changes(chain.of(problem))
        if not path.exists():
            if live is not None and (path.parent / "bundles").is_dir():
                yield Finding(str(path), f"missing: the records say {live.digest} is live")
            continue
        expected = [record for record in (live, chain.pending(problem)) if record]
        try:
            pointer: dict[str, Any] = json.loads(path.read_bytes())
            said = (pointer["digest"] and str(pointer["digest"]), int(pointer["counter"]))
        except (ValueError, KeyError, TypeError) as error:
            yield Finding(str(path), f"not a pointer ({error!r})")
            continue
        yield from _previous(chain, problem, pointer.get("previous_digest"), path)
        if said[0] is None and live is None and changed and changed[-1].counter == said[1]:
            continue
        match = [record for record in expected if (record.digest, record.counter) == said]
        if not match:
            wanted = " or ".join(f"{record.digest} (counter {record.counter})" for record in expected) or "nothing"
            yield Finding(
                str(path), f"says {said[0] or 'nothing'} (counter {said[1]}) is live, the records say {wanted}"
            )
        else:
            yield from _bundle(chain, problem, match[0].digest, path.parent)


def _previous(chain: Chain, problem: str, previous: str | None, path: Path) -> Iterator[Finding]:
    """Check what the service would roll back to."""
    if previous is None:
        return
    if previous not in {record.digest for record in chain.of(problem) if record.state in FLIPS}:
        yield Finding(str(path), f"would roll back to {previous}, which was never live")
    else:
        yield from _bundle(chain, problem, previous, path.parent)


def _bundle(chain: Chain, problem: str, digest: str, folder: Path) -> Iterator[Finding]:
    directory = folder / "bundles" / places.bundle(digest).name
    approved = chain.approved(problem, digest)
    if not directory.exists():
        yield Finding(str(directory), "missing in the store, whose pointer names it")
        return
    try:
        sha256 = bundles.files_sha256(directory)
    except BundleError as error:
        yield Finding.of(error)
        return
    if approved is not None and sha256 != approved.bundle_sha256:
        yield Finding(str(directory), f"not the bytes that record {approved.sequence} approved")
