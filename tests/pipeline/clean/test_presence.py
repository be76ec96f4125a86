"""A pod is measured against the time it was there, and is there when its requests say so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest


def told(healthy: Any, pod: str, action: str, seconds: float) -> dict[str, object]:
    size = {"cpu_cores": 1.0, "mem_bytes": 4 * healthy.gib, "gpus": 0.0}
    return {"time": healthy.at(seconds), "entity": pod, "kind": "pod", "action": action, "node": "n1", **size}


def request(healthy: Any, pod: str, seconds: float) -> dict[str, object]:
    size = {"cpu_cores": 0.4, "mem_bytes": healthy.gib, "duration_s": 2.0}
    return {"time": healthy.at(seconds), "function": None, "pod": pod, **size}


def scrapes(healthy: Any, pod: str, times: list[float]) -> list[dict[str, object]]:
    who = {"pod": pod, "node": "n1", "function": "f"}
    return [
        healthy.sample(metric, t, value, **who)
        for t in times
        for metric, value in (("pod_mem_used_bytes", healthy.gib), ("pod_cpu_request_cores", 1.0), ("pod_info", 1.0))
    ]


@pytest.fixture(scope="module")
def cleaned(run_clean: Callable[..., Any], healthy: SimpleNamespace) -> Any:
    """One cluster whose events tell of short-lived pods, and one that tells nothing; scrapes every minute."""
    teller, silent = healthy.rows(), healthy.rows()
    silent["events"] = []
    brief = [660.0, 720.0, 780.0]
    teller["samples"] += scrapes(healthy, "brief", brief) + scrapes(healthy, "lossy", brief[:1])
    teller["samples"] += scrapes(healthy, "early", [900.0]) + scrapes(healthy, "again", [60.0 * n for n in range(20)])
    teller["samples"] += scrapes(healthy, "gone", [0.0, 60.0])
    silent["samples"] += scrapes(healthy, "brief", [*brief, 840.0, 900.0, 960.0])
    for pod in ("brief", "lossy"):
        teller["events"] += [told(healthy, pod, "create", 630.0), told(healthy, pod, "delete", 810.0)]
    teller["events"] += [
        told(healthy, "early", "create", 1201.0),  # its clock is behind
        told(healthy, "again", "delete", 400.0),
        told(healthy, "again", "create", 410.0),
        told(healthy, "never", "create", 645.0),
        told(healthy, "never", "delete", 720.0),
        told(healthy, "gone", "delete", 120.0),
        {**told(healthy, "bare", "create", 650.0), "function": "f", "owner_kind": "Job"},
    ]
    teller["samples"].append(healthy.sample("pod_mem_used_bytes", 660.0, healthy.gib, pod="bare"))
    teller["requests"] += [request(healthy, "never", 700.0), request(healthy, "gone", 1900.0)]
    teller["requests"] += [request(healthy, "10.0.0.7", 700.0)]
    return run_clean({"teller": teller, "silent": silent})


def rows_of(cleaned: Any, cluster: str, pod: str) -> pd.DataFrame:
    pods = cleaned.table("pods", cluster)
    return pods[pods["pod"] == pod].sort_values("window_start").reset_index(drop=True)


def test_a_short_life_that_was_scraped_throughout_is_complete(cleaned: Any) -> None:
    row = rows_of(cleaned, "teller", "brief").iloc[0]
    assert row["present_ratio"] == pytest.approx(180 / 300)
    assert row["completeness"] == 1.0


def test_scrapes_lost_in_a_short_life_are_lost(cleaned: Any) -> None:
    row = rows_of(cleaned, "teller", "lossy").iloc[0]
    assert row["present_ratio"] == pytest.approx(180 / 300)
    assert row["completeness"] == pytest.approx(1 / 3)


def test_whose_pod_it_is_comes_from_its_events_where_only_its_use_was_scraped(cleaned: Any) -> None:
    row = rows_of(cleaned, "teller", "bare").iloc[0]
    assert tuple(row[["node", "function", "owner_kind"]]) == ("n1", "f", "Job")
    assert (row["cpu_request_cores"], row["mem_request_gib"]) == (1.0, 4.0)


def test_without_events_scrapes_tell_how_long_a_pod_was_there(cleaned: Any) -> None:
    rows = rows_of(cleaned, "silent", "brief")
    assert list(rows["present_ratio"]) == pytest.approx([4 / 5, 2 / 5])
    assert (rows["completeness"] == 1.0).all()
    assert (rows_of(cleaned, "silent", "p1")["present_ratio"] == 1.0).all()


def test_a_pod_scraped_before_its_creation_is_measured_by_its_scrapes(cleaned: Any) -> None:
    assert rows_of(cleaned, "teller", "early")["present_ratio"].iloc[0] == pytest.approx(1 / 5)


def test_a_name_that_is_used_again_was_there_before_and_is_there_still(cleaned: Any) -> None:
    rows = rows_of(cleaned, "teller", "again")
    assert len(rows) == 4
    assert rows["present_ratio"].tolist() == pytest.approx([1.0, 1 - 10 / 300, 1.0, 1.0]), "but not in between"


def test_a_pod_that_only_the_log_and_events_know_has_an_empty_row(cleaned: Any) -> None:
    row = rows_of(cleaned, "teller", "never").iloc[0]
    assert row["node"] == "n1"
    assert row["present_ratio"] == pytest.approx(75 / 300)
    assert (row["samples"], row["completeness"], row["requests_handled"]) == (0, 0.0, 1)
    assert (row["cpu_request_cores"], row["mem_request_gib"]) == (1.0, 4.0)
    assert pd.isna(row["cpu_used_mean_cores"])


def test_a_pod_that_answers_after_its_last_scrape_is_there(cleaned: Any) -> None:
    rows = rows_of(cleaned, "teller", "gone")
    assert list(rows["samples"] > 0) == [True, False]
    assert list(rows["node"]) == ["n1", "n1"]


def test_a_name_that_nothing_but_the_log_knows_is_no_pod(cleaned: Any) -> None:
    assert rows_of(cleaned, "teller", "10.0.0.7").empty
    assert "10.0.0.7" in set(cleaned.table("demands", "teller")["pod"])


def test_a_node_gives_all_its_cpu_to_its_pods_for_the_time_they_are_there(cleaned: Any) -> None:
    pods, nodes = cleaned.table("pods"), cleaned.table("nodes")
    pods = pods[pods["cpu_assigned_cores"].notna()]
    key = ["window_start", "cluster", "node"]
    given = (pods["cpu_assigned_cores"] * pods["present_ratio"]).groupby([pods[name] for name in key]).sum()
    asked = (pods["cpu_request_cores"] * pods["present_ratio"]).groupby([pods[name] for name in key]).sum()
    there = nodes.set_index(key).loc[given.index]
    assert given.to_numpy() == pytest.approx(there["cpu_capacity_cores"].to_numpy())
    assert asked.to_numpy() == pytest.approx(there["cpu_requested_cores"].to_numpy())


def test_between_two_lives_a_pod_is_not_there(run_clean: Callable[..., Any], healthy: SimpleNamespace) -> None:
    rows = healthy.rows()
    away = [60.0 * n for n in range(60) if not 10 <= n < 30]
    rows["samples"] += scrapes(healthy, "db-0", away)
    rows["events"] += [told(healthy, "db-0", "delete", 590.0), told(healthy, "db-0", "create", 1790.0)]
    cleaned = run_clean({"c": rows})
    lived = rows_of(cleaned, "c", "db-0")
    minutes = [(start - healthy.at(0)).total_seconds() / 60 for start in lived["window_start"]]
    assert minutes == [0, 5, *range(25, 60, 5)], "twenty minutes without it have no rows"
    assert lived["present_ratio"].tolist()[:4] == pytest.approx([1.0, 290 / 300, 10 / 300, 1.0])
    node = cleaned.table("nodes", "c").set_index("window_start")["cpu_requested_cores"]
    assert node[healthy.at(900)] == pytest.approx(2.0)
    assert node[healthy.at(300)] == pytest.approx(2.0 + 290 / 300)
