"""A policy from a file: an ONNX graph, or a bundle's folder, as a callable on batched observations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env import policy_graph
from sched_env.contracts.bundle import POLICY_FILE
from sched_env.errors import ConfigError


class PolicyFile:
    """Scores candidates with an ONNX graph, on one thread.

    Args:
        path: ``policy.onnx``, or the folder of a bundle.
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        file = path / POLICY_FILE if path.is_dir() else path
        if not file.is_file():
            raise ConfigError(f"policy {str(path)!r} does not exist", "an ONNX file or a bundle's folder")
        self.name = str(path)
        self._session = policy_graph.open_session(file.read_bytes())

    def __call__(
        self, candidates: NDArray[np.float32], request: NDArray[np.float32], mask: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Score a batch of observations."""
        return policy_graph.scores(self._session, candidates, request, mask)
