"""Pictures of a cluster: one bar of cpu and one of memory for each NUMA half."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCKS = " ▁▂▃▄▅▆▇█"
SERVERS_A_ROW = 25
BAR_PX, HEIGHT_PX, GAP_PX = 4, 60, 4
CPU_RGB, MEM_RGB, FREE_RGB, PAPER_RGB = (52, 101, 164), (78, 154, 6), (225, 225, 225), (255, 255, 255)


def text(used: NDArray[np.float64], title: str) -> str:
    """Draw used shares [C, 2] as one line a row of servers: cpu and memory of half 0, then of half 1."""
    levels = np.clip(np.ceil(used * (len(BLOCKS) - 1)), 0, len(BLOCKS) - 1).astype(int).reshape(-1, 2, 2)
    cells = ["|".join("".join(BLOCKS[level] for level in half) for half in server) for server in levels]
    rows = [" ".join(cells[at : at + SERVERS_A_ROW]) for at in range(0, len(cells), SERVERS_A_ROW)]
    shares = f"cpu {used[:, 0].mean():.1%} mem {used[:, 1].mean():.1%}"
    return "\n".join([f"{title}; allocated {shares}", *rows])


def image(used: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Draw used shares [C, 2] as bars, 25 servers a row: cpu blue, memory green."""
    servers = len(used) // 2
    across, down = min(servers, SERVERS_A_ROW), -(-servers // SERVERS_A_ROW)
    cell_w, cell_h = 4 * BAR_PX + GAP_PX, HEIGHT_PX + GAP_PX
    picture = np.full((down * cell_h + GAP_PX, across * cell_w + GAP_PX, 3), PAPER_RGB, np.uint8)
    for number, share in enumerate(used.reshape(-1)):  # half 0 cpu, half 0 mem, half 1 cpu, half 1 mem, next server …
        server, bar = divmod(number, 4)
        left = GAP_PX + (server % SERVERS_A_ROW) * cell_w + bar * BAR_PX
        top = GAP_PX + (server // SERVERS_A_ROW) * cell_h
        filled = round(HEIGHT_PX * float(np.clip(share, 0.0, 1.0)))
        column = picture[top : top + HEIGHT_PX, left : left + BAR_PX - 1]
        column[: HEIGHT_PX - filled] = FREE_RGB
        column[HEIGHT_PX - filled :] = CPU_RGB if bar % 2 == 0 else MEM_RGB
    return picture
