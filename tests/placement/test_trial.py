"""A signed policy that could not serve does not go live: asked in its trial what the service would ask of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from placement import trial
from placement.settings import Settings
from sched_env import problems
from wire import sample_bundle
from wire.errors import BundleError

SPEC = problems.spec("functions")


def around(change: Any) -> dict[str, bytes]:
    """A bundle whose golden vectors are right for its graph, which ``change`` has spoilt for other sizes."""
    model = sample_bundle.graph(SPEC, seed=0, hidden=8)
    change(model)
    return sample_bundle.assemble(SPEC, model.SerializeToString())


def rename(model: onnx.ModelProto, new: str) -> onnx.NodeProto:
    """Let the node that made ``scores`` make something else, so that another can follow it."""
    last = next(node for node in model.graph.node if "scores" in node.output)
    last.output[0] = new
    return last


def constant(model: onnx.ModelProto, name: str, value: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))


def nan_for_many(model: onnx.ModelProto) -> None:
    """0 / 0 as soon as there are more than 150 candidates."""
    rename(model, "plain")
    constant(model, "few", np.int64([150]))
    constant(model, "one_axis", np.int64([1]))
    constant(model, "no_number", np.float32([np.nan]))
    nodes = [
        helper.make_node("Shape", ["mask"], ["all_axes"]),
        helper.make_node("Gather", ["all_axes", "one_axis"], ["how_many"]),
        helper.make_node("Greater", ["how_many", "few"], ["too_many"]),
        helper.make_node("Where", ["too_many", "no_number", "plain"], ["scores"]),
    ]
    model.graph.node.extend(nodes)


def slow(model: onnx.ModelProto) -> None:
    """Multiplies candidates with each other: at 100 nobody notices, at 16,384 it takes seconds and a GiB."""
    rename(model, "plain")
    constant(model, "nothing", np.float32(0))
    nodes = [
        helper.make_node("Transpose", ["candidates"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["candidates", "turned"], ["pairs"]),
        helper.make_node("ReduceMax", ["pairs", "axis_2"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "nothing"], ["no_more"]),
        helper.make_node("Add", ["plain", "no_more"], ["scores"]),
    ]
    model.graph.node.extend(nodes)


def test_a_plain_policy_passes() -> None:
    trial.run(around(lambda model: None), Settings())


def test_a_policy_that_answers_nan_for_many_candidates() -> None:
    with pytest.raises(BundleError, match="NaN, for"):
        trial.run(around(nan_for_many), Settings())


def test_a_policy_that_takes_too_long_or_too_much_for_many_candidates() -> None:
    with pytest.raises(BundleError, match=r"ms of CPU|MiB of memory|fails for"):
        trial.run(around(slow), Settings())


def test_the_deadline_and_the_memory_are_those_of_the_service() -> None:
    good = around(lambda model: None)
    with pytest.raises(BundleError, match=r"ms of CPU for"):
        trial.run(good, Settings(deadline_ms=0.001))
    with pytest.raises(BundleError, match="MiB of memory"):
        trial.run(good, Settings(policy_memory_mib=1))


def arrays_of(files: dict[str, bytes]) -> dict[str, Any]:
    import io

    return dict(np.load(io.BytesIO(files["golden.npz"])))


def packed(arrays: dict[str, Any]) -> bytes:
    import io

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_golden_vectors_that_the_mask_hides_prove_nothing() -> None:
    from wire import bundle

    arrays = arrays_of(sample_bundle.build(SPEC, hidden=8))
    for size in arrays["sizes"]:
        arrays[f"mask_{size}"][:] = False
        arrays[f"mask_{size}"][:, 0] = True  # one allowed candidate is ranked first whatever it scores
    with pytest.raises(BundleError, match="two allowed candidates"):
        bundle.check_golden(packed(arrays), SPEC)


@pytest.mark.parametrize(("scale", "offset"), [(1e-6, 0.0), (1.0, 0.0), (1e4, 0.0), (1.0, 1000.0)])
def test_golden_vectors_are_compared_with_the_spread_of_scores(scale: float, offset: float) -> None:
    from wire import golden

    rng = np.random.default_rng(0)
    expected = (rng.standard_normal(1000) * scale + offset).astype(np.float32)
    apart = golden.spread([expected], "golden.npz")
    assert golden.compare(expected, expected, "it", apart) == 0.0
    rounded = np.nextafter(expected, np.float32(np.inf))
    golden.compare(rounded, expected, "it", apart)
    other = expected.copy()
    other[[0, 1]] += np.float32([0.01 * scale, -0.01 * scale])
    with pytest.raises(BundleError, match="of their spread"):
        golden.compare(other, expected, "it", apart)


def test_scores_that_drown_in_their_size_are_refused() -> None:
    from wire import golden

    scores = (1e7 + np.random.default_rng(0).standard_normal(100)).astype(np.float32)
    with pytest.raises(BundleError, match="float32 can tell"):
        golden.spread([scores], "golden.npz")
    with pytest.raises(BundleError, match="no answer that counts"):
        golden.spread([np.zeros(0, np.float32)], "golden.npz")
    assert golden.spread([np.full(3, 5, np.float32)], "golden.npz") == 0.0
