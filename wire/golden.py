"""Golden vectors: inputs and the answers an exporter saw, replayed wherever the graph is loaded.

``.npz`` with ``sizes`` and, for each size, every port as ``<port>_<size>``; never pickle, and never unpacked above
the cap of a file.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wire.errors import BundleError
from wire.graph import FloatArray, refusing

Arrays = dict[str, npt.NDArray[Any]]

MAX_BYTES = 64 * 1024 * 1024
"""Of one file, packed and unpacked."""

TOLERANCE = 1e-4
"""Allowed difference, as a share of the spread of the answers: other CPUs sum in another order, a wrong graph is far
off. Not as a share of the answers themselves: with a large constant in all of them every graph would pass, and with
tiny ones any fixed allowance would be all there is."""

ROUNDING = 16 * float(np.finfo(np.float32).eps)
"""Share of an answer by which float32 itself may differ from one CPU to the next."""


def load(data: bytes, file: str, ports: Sequence[str]) -> dict[int, Arrays]:
    """Read the arrays of every size; at least two sizes, so that a frozen axis shows."""
    with refusing(f"{file} cannot be read", "sizes, and an array for each port and size"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_BYTES:
            raise BundleError(f"{file} unpacks to {unpacked} bytes", f"at most {MAX_BYTES}")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            cases = {int(size): {port: arrays[f"{port}_{size}"] for port in ports} for size in arrays["sizes"]}
    if len(cases) < 2:
        raise BundleError(f"{file} has sizes {list(cases)}", "two different sizes or more")
    return cases


def hold_to(arrays: Arrays, expected: Mapping[str, tuple[tuple[int, ...], str]], size: int, file: str) -> None:
    """Compare shapes and types of one size with what they must be (port -> shape, dtype); no NaN, no empty array."""
    for port, (shape, dtype) in expected.items():
        array = arrays[port]
        if array.size == 0 or array.shape != shape or array.dtype != dtype:
            found = f"{file} {port}_{size} is {array.dtype}{list(array.shape)}"
            raise BundleError(found, f"{dtype}{list(shape)} with at least one row")
        if not np.isfinite(array).all():
            raise BundleError(f"{file} {port}_{size} holds NaN or infinity", "finite numbers")


def run(graph: Callable[[], FloatArray], expected: FloatArray, what: str) -> FloatArray:
    """Run a graph on recorded inputs; an answer of another shape, or with NaN, is a refusal.

    Args:
        graph: Gives the answers.
        expected: The recorded ones.
        what: Names graph and size in a refusal.
    """
    with refusing(f"{what} fails on golden vectors"):
        found = graph()
    if found.shape != expected.shape or not np.isfinite(found).all():
        raise BundleError(f"golden vectors: {what} gives shape {found.shape}, or NaN", "the recorded answers")
    return found


def spread(answers: Iterable[FloatArray], file: str) -> float:
    """Return how far the recorded answers of a file lie apart; raises when float32 cannot tell them apart."""
    values = np.concatenate([np.ravel(one) for one in answers]).astype(np.float64)
    if not values.size:
        raise BundleError(f"{file} records no answer that counts", "candidates that the mask allows")
    apart, largest = float(values.max() - values.min()), float(np.abs(values).max())
    if 0.0 < apart < 10.0 * ROUNDING * largest:
        found = f"{file}: answers up to {largest:.3g} lie only {apart:.3g} apart"
        raise BundleError(found, "a spread that float32 can tell from rounding")
    return apart


def compare(found: FloatArray, expected: FloatArray, what: str, apart: float) -> float:
    """Return the worst difference as a share of the spread; raises when it is above the tolerance.

    Args:
        found: The answers.
        expected: The recorded ones.
        what: Names graph and size in a refusal.
        apart: :func:`spread` of all recorded answers of the file.
    """
    difference = np.abs(found.astype(np.float64) - expected)
    scale = apart + np.abs(expected.astype(np.float64)) * (ROUNDING / TOLERANCE) + np.finfo(np.float64).tiny
    worst = float((difference / scale).max(initial=0.0))
    if worst > TOLERANCE:
        said = f"at most {TOLERANCE:g} of the spread of the answers ({apart:.3g})"
        raise BundleError(f"golden vectors: answers of {what} differ by {worst:.2e} of their spread", said)
    return worst
