"""A forest whose leaves keep distributions: what is expected, and how far it may be off, from one pool of answers.

Trees are grown on half of the rows each (extremely randomised) and their leaves filled with the *other* half, so that a
leaf shows how much rows like these really vary: a tree that explained noise would otherwise be sure of it. Each leaf
keeps a few evenly spaced quantiles; the answer to a row is drawn from the pool of those of all trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

TREES = 64
QUANTILES_A_LEAF = 8
SHARE_GROWN_ON = 0.5
SMALLEST_LEAF = 1
"""Of the rows a tree is grown on; rows held out fill the leaf, and where none reaches it, these."""
SHARE_OF_COLUMNS = 0.7
"""Tried at each split."""


@dataclass(frozen=True)
class Forest:
    """Trees as arrays, all in one numbering of nodes; a leaf points to itself."""

    root: Indices
    """[trees]"""
    feature: Indices
    threshold: NDArray[np.float32]
    left: Indices
    """Where a row goes whose feature is at most the threshold."""
    right: Indices
    leaf: Indices
    """Node -> its row of ``values``; 0 where it is no leaf."""
    values: NDArray[np.float32]
    """[leaves, quantiles]: log of the time over the undisturbed one."""
    depth: int

    def pool(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [rows, trees x quantiles]: all that the trees know about each row."""
        at = np.broadcast_to(self.root, (len(rows), len(self.root)))
        for _ in range(self.depth):
            goes_left = np.take_along_axis(rows, self.feature[at], axis=1) <= self.threshold[at]
            at = np.where(goes_left, self.left[at], self.right[at])
        return self.values[self.leaf[at]].reshape(len(rows), -1)


def grow(x: NDArray[np.float32], y: Floats, *, seed: int, trees: int = TREES) -> Forest:
    """Grow a forest on rows and their targets."""
    from sklearn.ensemble import ExtraTreesRegressor

    grown = ExtraTreesRegressor(
        trees,
        min_samples_leaf=SMALLEST_LEAF,
        max_features=SHARE_OF_COLUMNS,
        bootstrap=True,
        max_samples=SHARE_GROWN_ON,
        random_state=seed,
        n_jobs=1,
    ).fit(x, y)
    reached = grown.apply(x)
    parts: list[tuple[NDArray[np.generic], ...]] = []
    first, leaves, roots, depth = 0, 0, [], 0
    for number, (tree, drawn) in enumerate(zip(grown.estimators_, grown.estimators_samples_, strict=True)):
        nodes = tree.tree_
        own = np.arange(nodes.node_count)
        is_leaf = nodes.children_left < 0
        rank = np.where(is_leaf, np.cumsum(is_leaf) - 1, 0)
        held_out = np.ones(len(y), bool)
        held_out[drawn] = False
        values = _fill(reached[:, number], y, held_out, np.flatnonzero(is_leaf))
        # Rows are float32 and compared with a float64 there; rounded down, float32 decides the same.
        threshold = nodes.threshold.astype(np.float32)
        threshold = np.where(threshold > nodes.threshold, np.nextafter(threshold, np.float32(-np.inf)), threshold)
        parts.append(
            (
                np.where(is_leaf, 0, nodes.feature),
                np.where(is_leaf, np.float32(0), threshold),
                first + np.where(is_leaf, own, nodes.children_left),
                first + np.where(is_leaf, own, nodes.children_right),
                np.where(is_leaf, leaves + rank, 0),
                values,
            )
        )
        roots.append(first)
        first, leaves, depth = first + nodes.node_count, leaves + len(values), max(depth, nodes.max_depth)
    feature, threshold, left, right, leaf, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Forest(
        np.array(roots),
        feature.astype(np.int64),
        threshold.astype(np.float32),
        left.astype(np.int64),
        right.astype(np.int64),
        leaf.astype(np.int64),
        values.astype(np.float32),
        int(depth),
    )


def _fill(reached: Indices, y: Floats, held_out: NDArray[np.bool_], leaves: Indices) -> Floats:
    """Return quantiles of the rows that reach each leaf: of those held out, or of all where none was."""
    at = (np.arange(QUANTILES_A_LEAF) + 0.5) / QUANTILES_A_LEAF
    order = np.lexsort((y, reached))
    node, value, fresh = reached[order], y[order], held_out[order]
    starts, ends = np.searchsorted(node, leaves), np.searchsorted(node, leaves, side="right")
    filled = np.empty((len(leaves), QUANTILES_A_LEAF))
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        mine = value[start:end]
        honest = mine[fresh[start:end]]
        mine = honest if honest.size else mine
        filled[row] = mine[(at * mine.size).astype(np.int64)]
    return filled


def quantile(pool: NDArray[np.float32], share: float, *, relative: bool = False) -> Floats:
    """Return a quantile of each row of a pool of logs.

    Args:
        pool: [rows, answers].
        share: Of the pool that lies below.
        relative: Count each answer by one over its time: the median then makes the relative error smallest, where the
            plain one makes that of the logs smallest.
    """
    ordered = np.sort(pool.astype(np.float64), axis=1)
    weights = np.exp(-ordered) if relative else np.ones_like(ordered)
    below = np.cumsum(weights, axis=1)
    at = (below < share * below[:, -1:]).sum(axis=1, keepdims=True)
    found: Floats = np.take_along_axis(ordered, np.minimum(at, ordered.shape[1] - 1), axis=1)[:, 0]
    return found
