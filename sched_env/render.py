"""Pictures of a state, for every problem: how much of each resource is in use, candidate by candidate; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Gauges = Mapping[str, NDArray[np.float64]]
"""Resource -> share of it in use [C], as ``Problem.gauges`` returns them."""

MODES = ("ansi", "rgb_array")
BLOCKS = " ▁▂▃▄▅▆▇█"
CANDIDATES_A_ROW = 100
CELL_PX, GAP_PX = 12, 2
COLD_RGB, HOT_RGB, PAPER_RGB = np.array([60, 120, 216]), np.array([214, 60, 46]), (255, 255, 255)


def text(gauges: Gauges, headline: str) -> str:
    """Draw a line of bars a resource, one bar a candidate, after the mean share of all."""
    width = max(len(name) for name in gauges)
    lines = [headline]
    for name, shares in gauges.items():
        levels = np.clip(np.ceil(shares * (len(BLOCKS) - 1)), 0, len(BLOCKS) - 1).astype(int)
        bars = "".join(BLOCKS[level] for level in levels)
        label = f"{name:<{width}} {shares.mean():6.1%} |"
        lines.extend(
            f"{'|' if at else label:>{len(label)}}{bars[at : at + CANDIDATES_A_ROW]}|"
            for at in range(0, len(bars), CANDIDATES_A_ROW)
        )
    return "\n".join(lines) + "\n"


def image(gauges: Gauges) -> NDArray[np.uint8]:
    """Draw a heat map, blue to red: a column a candidate, a row a resource, and so on below when there are many."""
    shares = np.clip(np.stack(list(gauges.values())), 0.0, 1.0)
    resources, count = shares.shape
    bands, step = -(-count // CANDIDATES_A_ROW), CELL_PX + GAP_PX
    height = bands * (resources * step + GAP_PX) + GAP_PX
    picture = np.full((height, min(count, CANDIDATES_A_ROW) * step + GAP_PX, 3), PAPER_RGB, np.uint8)
    for c in range(count):
        band, column = divmod(c, CANDIDATES_A_ROW)
        for resource in range(resources):
            top = GAP_PX + band * (resources * step + GAP_PX) + resource * step
            left = GAP_PX + column * step
            colour = COLD_RGB + shares[resource, c] * (HOT_RGB - COLD_RGB)
            picture[top : top + CELL_PX, left : left + CELL_PX] = colour.astype(np.uint8)
    return picture
