"""The scorer as an ONNX graph: any batch, any number of candidates, mask and normalisation inside."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.parity import draw
from pipeline.policies.scorer import CLIP, Scorer
from wire import graph
from wire.contracts.bundle import CANDIDATES_INPUT, MASK_INPUT, MASKED_SCORE, REQUEST_INPUT, SCORES_OUTPUT
from wire.contracts.feature_spec import FeatureSpec


class Columnwise(nn.Module):
    """The scorer's function with candidates as the last axis: what onnxruntime runs a third faster.

    Sums, maxima and biases over candidates then go along memory. Training keeps the other order, which is faster there.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__()
        self.scorer = scorer

    def forward(self, candidates: Tensor, request: Tensor, mask: Tensor) -> Tensor:
        """Return scores ``[B, C]``."""
        net = self.scorer
        rows = (candidates / net.candidate_scale).clamp(-CLIP, CLIP).transpose(1, 2)
        asked = (request / net.request_scale).clamp(-CLIP, CLIP)
        first = net.encode_features
        encoded = (torch.matmul(first.rows.weight, rows) + first.shared(asked).unsqueeze(-1)).relu()
        encoded = (torch.matmul(net.encode_hidden.weight, encoded) + net.encode_hidden.bias.unsqueeze(-1)).relu()
        feasible = mask.to(encoded.dtype)
        share = feasible / feasible.sum(dim=1, keepdim=True).clamp(min=1.0)
        mean = torch.matmul(encoded, share.unsqueeze(-1))
        largest = (encoded * feasible.unsqueeze(1)).amax(dim=2, keepdim=True)
        pooled = torch.cat([mean, largest], dim=1)
        last = net.score_hidden
        context = torch.matmul(last.shared.weight, pooled) + last.shared.bias.unsqueeze(-1)
        hidden = (torch.matmul(last.rows.weight, encoded) + context).relu()
        scores = (torch.matmul(net.score_head.weight, hidden) + net.score_head.bias).squeeze(1)
        return torch.where(mask, scores, torch.tensor(MASKED_SCORE))


def to_onnx(scorer: Scorer, spec: FeatureSpec) -> bytes:
    """Export the network; batch and candidate axes stay free."""
    batch, nodes = torch.export.Dim("batch", min=1, max=4096), torch.export.Dim("candidates", min=1, max=20_000)
    # Sizes 0 and 1 would be frozen into the graph: the example has more.
    example = tuple(torch.from_numpy(array) for array in draw(spec, rows=2, size=3, seed=0))
    buffer = io.BytesIO()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        program = torch.onnx.export(
            Columnwise(scorer).eval(),
            example,
            dynamo=True,
            opset_version=graph.OPSET,
            external_data=False,
            input_names=[CANDIDATES_INPUT, REQUEST_INPUT, MASK_INPUT],
            output_names=[SCORES_OUTPUT],
            dynamic_shapes=({0: batch, 1: nodes}, {0: batch}, {0: batch, 1: nodes}),
            verbose=False,
        )
    model = program.model_proto  # type: ignore[union-attr]  # None only for the legacy exporter
    _strip(model)
    buffer.write(model.SerializeToString(deterministic=True))
    return buffer.getvalue()


def _strip(model: Any) -> None:
    """Remove what the exporter notes about this machine: source lines and paths in node metadata."""
    model.ClearField("metadata_props")
    model.graph.ClearField("metadata_props")
    for node in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.value_info):
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for tensor in model.graph.initializer:
        tensor.ClearField("doc_string")
