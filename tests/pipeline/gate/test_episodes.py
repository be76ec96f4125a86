"""What the gate refuses to judge, each with the row that is wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.errors import GateError
from pipeline.gate import episodes

POLICIES = {"challenger": 0.0, "champion": 0.0, "first_fit": 0.0}


@pytest.fixture
def good(simulate, tabulate) -> pa.Table:
    return tabulate(simulate(POLICIES, blocks=3, traces_per_block=2, scenarios=("calm", "busy")))


def _with(table: pa.Table, column: str, row: int, value: object) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    index = table.column_names.index(column)
    field = table.schema.field(column).with_nullable(True)
    return table.set_column(index, field, pa.array(values, field.type))


def test_policies_are_aligned_whatever_the_order_of_rows(good, tmp_path):
    shuffled = good.take(np.random.default_rng(0).permutation(good.num_rows))
    pq.write_table(shuffled, tmp_path / "episodes.parquet")
    found = episodes.read(tmp_path / "episodes.parquet")
    assert found.scenarios == ("busy", "calm")
    assert found.heuristics == ("first_fit",)
    assert found.champion
    for row in (0, 5, 11):
        match = good.filter(
            (pc.field("policy") == "first_fit")
            & (pc.field("scenario") == found.scenarios[found.scenario[row]])
            & (pc.field("trace") == found.traces[row])
        )
        assert found.metric("first_fit", "return")[row] == match["return"][0].as_py()
        assert found.block[row] == match["block"][0].as_py()


def test_a_metric_that_is_null_everywhere_is_one_the_problem_does_not_have(good):
    found = episodes.align(good, source="here")
    assert "wait_s" not in found.values["challenger"]
    with pytest.raises(GateError, match=r"no 'wait_s'.*one of bound, cost_usd"):
        found.metric("challenger", "wait_s")


@pytest.mark.parametrize(("value", "seen"), [(float("nan"), "is nan"), (None, "is missing"), (float("inf"), "is inf")])
def test_a_value_that_is_no_number_is_named_with_its_row(good, value, seen):
    row = good["trace"].to_pylist().index("start-0003")
    with pytest.raises(GateError, match=rf"cost_usd {seen} in the row of policy 'challenger', .*'start-0003'"):
        episodes.align(_with(good, "cost_usd", row, value), source="here")


def test_a_missing_episode_is_named(good):
    with pytest.raises(GateError, match=r"'first_fit' has no episode of scenario 'busy', trace 'start-0005'"):
        episodes.align(good.slice(0, good.num_rows - 1), source="here")


def test_an_extra_episode_is_named_as_missing_from_the_challenger(good):
    with pytest.raises(GateError, match="'challenger' has no episode of scenario 'calm', trace 'start-0000'"):
        episodes.align(good.slice(1), source="here")


def test_an_episode_that_ran_twice_is_named(good):
    with pytest.raises(GateError, match=r"'challenger' ran scenario 'calm', trace 'start-0000' twice"):
        episodes.align(pa.concat_tables([good, good.slice(0, 1)]), source="here")


def test_blocks_must_agree(good):
    last = good.num_rows - 1
    with pytest.raises(GateError, match="is in block 77 for 'first_fit'"):
        episodes.align(_with(good, "block", last, 77), source="here")


def test_a_policy_of_unknown_kind_is_refused(good):
    with pytest.raises(GateError, match=r"of kind 'rival'; expected one of challenger, champion, heuristic"):
        episodes.align(_with(good, "kind", 0, "rival"), source="here")


def test_a_champion_under_another_name_is_refused(good):
    renamed = good.set_column(0, "policy", pc.replace_substring(good["policy"], "champion", "last_week"))
    with pytest.raises(GateError, match="expected policy 'champion' for that kind"):
        episodes.align(renamed, source="here")


@pytest.mark.parametrize("kept", [["challenger", "champion"], ["champion", "first_fit"]])
def test_there_must_be_a_challenger_and_a_heuristic(good, kept):
    with pytest.raises(GateError, match="a challenger and at least one heuristic"):
        episodes.align(good.filter(pc.field("policy").isin(kept)), source="here")


def test_missing_columns_files_and_rows_are_said(good, tmp_path):
    with pytest.raises(GateError, match="no column return, oom"):
        episodes.align(good.drop_columns(["return", "oom"]), source="here")
    with pytest.raises(GateError, match="is empty"):
        episodes.align(good.slice(0, 0), source="here")
    with pytest.raises(GateError, match="dvc repro evaluate"):
        episodes.read(tmp_path / "none.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(GateError, match="not a Parquet file"):
        episodes.read(tmp_path / "broken.parquet")
