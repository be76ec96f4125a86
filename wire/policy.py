"""The one loader of policies: a bundle's folder, or a bare ONNX file, as a callable on batched observations."""

from __future__ import annotations

from pathlib import Path

from wire import bundle, graph, models
from wire.bundle import Bundle, Known
from wire.contracts.bundle import Manifest
from wire.errors import BundleError, ConfigError
from wire.graph import BoolArray, FloatArray


class GraphPolicy:
    """Scores candidates with an ONNX graph, on one thread; ``models`` holds the bundle's further ones by name.

    Args:
        policy: The bytes of the graph.
        name: What rollouts and reports call it.
        checked: The bundle it came in, if it came in one.
    """

    def __init__(self, policy: bytes, name: str, checked: Bundle | None = None) -> None:
        self.name, self._checked = name, checked
        self.spec = checked.manifest.feature_spec if checked else None
        self.session = graph.open_session(policy)
        self.models = models.open_all(checked.models) if checked else {}

    @property
    def bundle(self) -> Bundle:
        """The bundle it came in; a bare graph has none."""
        if self._checked is None:
            raise BundleError(f"{self.name} is a bare graph", "a bundle")
        return self._checked

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        return self.bundle.manifest

    def __call__(self, candidates: FloatArray, request: FloatArray, mask: BoolArray) -> FloatArray:
        """Score a batch of observations."""
        return graph.scores(self.session, candidates, request, mask)


def load(path: Path, known: Known | None = None) -> GraphPolicy:
    """Load a policy; of a bundle, the very bytes that were checked.

    Args:
        path: Folder of a bundle, or an ONNX file.
        known: Feature spec of a problem, or several, of which a bundle must then fit one.
    """
    if path.is_dir():
        checked = bundle.check(bundle.read(path), known)
        return GraphPolicy(checked.policy, str(path), checked)
    if not path.is_file():
        raise ConfigError(f"policy {str(path)!r} does not exist", "an ONNX file or a bundle's folder")
    return GraphPolicy(path.read_bytes(), str(path))
