"""From a digest back to run, commit, params and data; and forward again to the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.errors import RegistryError
from pipeline.registry import bundles, lineage, places, terminal, views
from pipeline.registry import command as registry
from pipeline.registry.chain import Chain, append
from pipeline.registry.runs import branch_of
from sched_env import problems


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["registry", *arguments])
    code = registry.main()
    return code, capsys.readouterr().out


def test_a_digest_leads_back_to_commit_params_and_data(history, pipeline_repository, monkeypatch, capsys) -> None:
    chain = Chain.open()
    record = chain.records[2]
    thread = lineage.trace(chain, record.digest[:15])
    assert thread.run_id == "scheduled__2026-11-15T02:00:00+00:00"
    assert thread.params == {"ingest": {"step": 7}, "train": {"seed": 2}}
    assert set(thread.data) == {"data/raw", "data/bundles/functions", "data/gate/functions"}
    assert thread.data_range == ("2026-11-10T00:00:00Z", "2026-11-15T00:00:00Z")
    assert (thread.approver, thread.records) == ("ada", [2, 3])
    head = (pipeline_repository / ".git" / "refs" / "heads" / "main").read_text().strip()
    assert thread.code_commit == head
    code, text = command(monkeypatch, capsys, "lineage", record.digest)
    assert code == 0
    assert "param    train.seed = 2" in text
    assert "windows  from 2026-11-10T00:00:00Z until 2026-11-15T00:00:00Z" in text


def test_a_policy_is_rebuilt_to_the_same_bytes_without_any_cache(history, tmp_path) -> None:
    chain = Chain.open()
    target = tmp_path / "rebuilt"
    said = lineage.rebuild(chain, chain.records[0].digest, target, first_stage="ingest", last_stage="export@{problem}")
    assert said.startswith("same bytes")
    assert not list((places.dvc_cache()).glob("runs/*")) or (target / ".dvc" / "cache").is_dir()
    with pytest.raises(RegistryError, match="exists"):
        lineage.rebuild(chain, chain.records[0].digest, target, first_stage="ingest", last_stage="export@{problem}")


def test_plain_git_and_dvc_bring_back_bundles_and_nights_without_our_code(history, tmp_path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(*command: str, folder: Path = tmp_path) -> str:
        return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout

    record = Chain.open().records[2]
    for branch in ("promotions", branch_of(record.run_id)):
        clone = tmp_path / branch.replace("/", "-")
        run("git", "clone", "-q", "-b", branch, str(history / "remotes" / "registry.git"), str(clone))
        run("dvc", "remote", "add", "--local", "-d", "r", str(history / "remotes" / "dvc"), folder=clone)
        run("dvc", "pull", "--quiet", folder=clone)
        if branch == "promotions":
            pulled = clone / "bundles" / places.bundle(record.digest).name
            assert bundles.files_sha256(pulled) == record.bundle_sha256
        else:
            assert "up to date" in run("dvc", "repro", folder=clone), "the commit holds all that the night depended on"
            manifest = bundles.read_manifest(clone / "data" / "bundles" / "functions")
            assert manifest.digest == record.digest


def test_an_unknown_or_ambiguous_digest_is_refused_with_the_known_ones(history) -> None:
    chain = Chain.open()
    for name in ("sha256:ffffffffffffffff", ""):
        with pytest.raises(RegistryError, match=chain.records[0].digest[:19]):
            lineage.trace(chain, name)


def test_list_show_and_diff_say_what_happened(history, monkeypatch, capsys) -> None:
    chain = Chain.open()
    first, second = chain.records[0].digest, chain.records[2].digest
    code, text = command(monkeypatch, capsys, "list", "--problem", "functions")
    assert code == 0
    # Judged against it: the second run. The rejected third was judged against the second.
    judged = "challengers judged against it: 1 (1 pass)"
    assert text.splitlines()[0] == f"functions: {first} is live since 2026-11-16T09:00:00+00:00; {judged}"
    assert "rejected by bob" in text
    assert "not on a Friday" in text
    assert '"state": "rolled_back"' in command(monkeypatch, capsys, "show", "5")[1]
    assert '"approver": "ada"' in command(monkeypatch, capsys, "show", second[:16])[1]
    changes = list(views.difference(chain, first, second))
    assert "param train.seed: 1 -> 2" in changes
    assert any(line.startswith("data data/bundles/functions:") for line in changes)
    assert not any(line.startswith("data data/raw") for line in changes), "the same data"
    assert not list(views.difference(chain, first, first))


def test_words_of_a_record_cannot_command_the_terminal(history, monkeypatch, capsys) -> None:
    chain = Chain.open()
    reason = "fine\x1b[2K\nfunctions: sha256:evil is live"
    given = terminal.typed("bob", digest=Chain.open().records[4].digest, report_sha256=None)
    changes = {"state": "rejected", "approver": "bob", "reason": reason, "answer": given, "kind": "resign"}
    append(lambda chain: chain.follow_up(chain.records[4], **changes))
    assert len(Chain.open().records) == len(chain.records) + 1
    for arguments in (("list",), ("show", "6")):
        text = command(monkeypatch, capsys, *arguments)[1]
        assert "\x1b" not in text
        assert not any(line.startswith("functions: sha256:evil") for line in text.splitlines())


def test_verify_says_in_its_exit_code_whether_the_registry_is_whole(history, monkeypatch, capsys) -> None:
    code, text = command(monkeypatch, capsys, "verify")
    assert (code, text.splitlines()[-1]) == (0, "6 records, 0 findings")
    (places.bundle(Chain.open().records[0].digest) / "policy.onnx").write_bytes(b"x")
    code, text = command(monkeypatch, capsys, "verify")
    assert code == registry.EXIT_FINDINGS
    assert "policy.onnx: changed" in text


@pytest.fixture
def two_bundles(tmp_path) -> Callable[[bytes], tuple[Path, Path]]:
    """A real policy's bundle beside one with another graph file."""
    sample_bundle = pytest.importorskip("wire.sample_bundle")

    def make(policy: bytes) -> tuple[Path, Path]:
        original, rebuilt = tmp_path / "original", tmp_path / "rebuilt"
        for folder in (original, rebuilt):
            folder.mkdir()
            for name, data in sample_bundle.build(problems.spec("functions"), seed=1, hidden=8).items():
                (folder / name).write_bytes(data)
        (rebuilt / "policy.onnx").write_bytes(policy)
        return original, rebuilt

    return make


def graph(*, seed: int = 1, nudge: float = 0.0) -> bytes:
    """The policy as another exporter would have written it: other bytes, the weights moved by ``nudge``."""
    import onnx

    from wire import sample_bundle

    model = sample_bundle.graph(problems.spec("functions"), seed=seed, hidden=8)
    model.producer_version = "another"
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and nudge:
            moved = onnx.numpy_helper.to_array(tensor) * (1.0 + nudge)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved.astype("float32"), tensor.name))
    return bytes(model.SerializeToString())


def test_other_bytes_with_the_same_scores_are_accepted_and_the_cause_is_named(two_bundles, tmp_path) -> None:
    original, rebuilt = two_bundles(graph())
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(f"torch==1.2.3\nnumpy=={metadata.version('numpy')}\n")
    said = lineage.compare(original, rebuilt, constraints=constraints)
    assert said.startswith("same scores: the files differ (torch ")
    assert "here, 1.2.3 in constraints.txt of the run" in said
    assert "numpy" not in said
    assert said.endswith("by at most 0")
    constraints.write_text(f"numpy=={metadata.version('numpy')}\n")
    assert "so another CPU" in lineage.compare(original, rebuilt, constraints=constraints)


def test_other_scores_are_an_error_with_the_size_of_the_difference(two_bundles, tmp_path) -> None:
    original, rebuilt = two_bundles(graph(nudge=1e-3))
    with pytest.raises(RegistryError, match=r"scores differently, by up to .*scores within 1e-06.*the likely cause"):
        lineage.compare(original, rebuilt, constraints=tmp_path / "none.txt")
    (rebuilt / "policy.onnx").write_bytes(graph(seed=2))
    with pytest.raises(RegistryError, match="scores differently"):
        lineage.compare(original, rebuilt, constraints=tmp_path / "none.txt")


def test_equal_files_are_told_by_their_hash(two_bundles, tmp_path) -> None:
    original, rebuilt = two_bundles(b"")
    (rebuilt / "policy.onnx").write_bytes((original / "policy.onnx").read_bytes())
    assert lineage.compare(original, rebuilt, constraints=tmp_path / "none.txt").startswith("same bytes: policy.onnx")
