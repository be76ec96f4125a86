"""Pictures of a serverless cluster: text bars for terminals, an RGB array for videos; numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BAR = 20
CELL, GAP = 12, 2
RESOURCES = ("cpu", "mem", "net", "disk")
COLD_RGB, HOT_RGB = np.array([60, 120, 216]), np.array([214, 60, 46])
IDLE_RGB, BACKGROUND_RGB = (225, 225, 225), (255, 255, 255)


def as_text(
    names: tuple[str, ...],
    utilization: NDArray[np.float32],
    instances: NDArray[np.float64],
    billed: NDArray[np.bool_],
    headline: str,
) -> str:
    """Return a line a node: cpu and memory as bars, network and disk in percent, instances, ``$`` while billed."""
    width = max(len(name) for name in names)
    lines = [headline]
    for index, name in enumerate(names):
        cpu, mem, net, disk = (float(value) for value in utilization[index])
        lines.append(
            f"{name:<{width}} {'$' if billed[index] else ' '} cpu {_bar(cpu)} mem {_bar(mem)} "
            f"net {net:4.0%} disk {disk:4.0%} {int(instances[index]):4d}"
        )
    return "\n".join(lines) + "\n"


def _bar(share: float) -> str:
    filled = round(share * BAR)
    return "#" * filled + "." * (BAR - filled)


def as_rgb(utilization: NDArray[np.float32], billed: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return a heat map: a column a node, a row a resource, blue to red; nodes that are not billed are grey."""
    count = len(utilization)
    step = CELL + GAP
    picture = np.empty((len(RESOURCES) * step + GAP, count * step + GAP, 3), np.uint8)
    picture[:] = BACKGROUND_RGB
    for node in range(count):
        for resource in range(len(RESOURCES)):
            share = float(utilization[node, resource])
            colour = COLD_RGB + share * (HOT_RGB - COLD_RGB) if billed[node] else np.array(IDLE_RGB)
            top, left = GAP + resource * step, GAP + node * step
            picture[top : top + CELL, left : left + CELL] = colour.astype(np.uint8)
    return picture
