"""Whatever the samples, every row is accounted for and no window holds what cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.clean.config import CleanConfig
from pipeline.clean.day import RawDay, clean_day
from pipeline.clean.engine import Engine
from pipeline.contracts.raw import METRICS
from pipeline.contracts.windows import KEYS

NAMES = st.sampled_from(["a", "b", "", None])
VALUES = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, 2.5, 1e3, 1e6, 2.0**30, 2.0**35, -1.0]),
    st.none(),
)
SECONDS = st.one_of(st.floats(-1000, 90_000), st.sampled_from([0.0, 299.999999, 300.0, 600.0, 86_399.999999, 86_400.0]))


@st.composite
def sample_rows(draw: st.DrawFn, make: Any) -> list[dict[str, Any]]:
    metrics = st.sampled_from([*METRICS, "kube_pod_info", "nonsense"])
    rows = []
    for _ in range(draw(st.integers(1, 25))):
        metric = draw(metrics)
        names = {label: draw(NAMES) for label in ("node", "pod", "function", "card", "detail")}
        bound = draw(st.one_of(st.none(), st.sampled_from([0.1, 1.0, float("inf"), float("nan")])))
        for moment in draw(st.lists(SECONDS, min_size=1, max_size=6)):
            row = {**make.sample(metric, moment, draw(VALUES), **names), "le": bound}
            rows += [row] * draw(st.sampled_from([1, 1, 1, 2]))
    return rows


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(CleanConfig(), tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_row_is_accounted_for_and_windows_are_sound(
    data: st.DataObject, engine: Engine, healthy: Any, tmp_path: Path
) -> None:
    rows = healthy.rows(hours=0.25)
    rows["samples"] += data.draw(sample_rows(healthy))
    raw = healthy.write(tmp_path / "raw", {"c": rows})
    files = {table: sorted(raw.glob(f"{table}/*/*/*.parquet")) for table in ("samples", "requests", "events")}
    cleaned = clean_day(engine, RawDay(healthy.day, files), {}, CleanConfig())
    account = cleaned.accounts["samples"]
    assert account.rows_in == sum(pq.read_metadata(file).num_rows for file in files["samples"])
    account.check("samples")
    for name, key in KEYS.items():
        table = cleaned.tables[name].to_pandas()
        assert not table.duplicated(list(key)).any(), name
        for column in table.columns:
            if column.endswith(("_cores", "_gib", "_mb_s", "_iops", "_cards", "_s", "_ratio")):
                values = table[column].dropna()
                assert (values >= 0).all(), f"{name}.{column}"
                assert (values < float("inf")).all(), f"{name}.{column}"
        if "completeness" in table.columns:
            assert table["completeness"].between(0, 1).all()
            assert ((table["samples"] > 0) | table["filled"] | (table["completeness"] == 0)).all(), name
    for name in ("nodes", "pods"):
        table = cleaned.tables[name].to_pandas().dropna(subset=["cpu_used_max_cores", "cpu_used_mean_cores"])
        assert (table["cpu_used_mean_cores"] <= table["cpu_used_max_cores"]).all()
