from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from sched_env.functions import azure as azure_functions
from sched_env.functions import synthetic as synthetic_functions
from sched_env.functions import trace as functions
from sched_env.functions.tables import FunctionTrace
from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from sched_env.vm.tables import VmTrace
from wire.errors import ConfigError, TraceError

PUBLIC = Path(__file__).parents[4] / "shared" / "data" / "azure-functions-2019"
HEADER = "arrival_s,function,cpu,mem,net,disk,requests,duration_s\n"
AZURE = {
    "invocations": "HashOwner,HashApp,HashFunction,Trigger,480,481,482\no,a,f1,http,1,0,7\no,a,f2,timer,0,2,0\n",
    "durations": "HashOwner,HashApp,HashFunction,Average,Count\no,a,f2,500,3\no,a,f1,20000,9\n",
    "memory": "HashFunction,HashOwner,HashApp,SampleCount,AverageAllocatedMb\nf1,o,a,1,1769\nf2,o,a,1,10\n",
}


def write(folder, files, **changes):
    for name, text in {**files, **changes}.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def columns(**changes):
    values = {
        "arrival_s": [0.0, 1.0], "function": [0, 1], "cpu": [1.0, 1.0], "mem": [1.0, 1.0], "net": [0.0, 0.0],
        "disk": [0.0, 0.0], "requests": [10, 20], "duration_s": [10.0, 10.0],
    }  # fmt: skip
    return {**values, **changes}


class TestTables:
    def test_defaults_of_response_time_and_slo(self):
        trace = FunctionTrace(**columns())
        assert trace.response_s.tolist() == [1.0, 0.5]
        assert trace.slo_s.tolist() == [2.0, 1.0]
        assert FunctionTrace(**columns(slo_s=[3.0, 3.0])).response_s.tolist() == [1.5, 1.5]
        both = FunctionTrace(**columns(slo_s=[3.0, 3.0], response_s=[1.0, 1.0]))
        assert both.slo_s.tolist() == [3.0, 3.0]
        assert trace.function_names == ("f0", "f1")

    def test_a_part_keeps_names_and_values(self):
        part = FunctionTrace(**columns()).rows(1, 2)
        assert (len(part), part.function.tolist(), part.function_names) == (1, [1], ("f0", "f1"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"cpu": [1.0, 0.0]}, "cpu row 1: 0.0"),
            ({"mem": [1.0, np.nan]}, "mem row 1: nan"),
            ({"net": [-1.0, 0.0]}, "net row 0"),
            ({"requests": [-1, 1]}, "requests row 0"),
            ({"node": [-2, 0]}, "node row 0"),
            ({"up_s": 0.0}, "up_s is 0"),
            ({"arrival_s": [1.0, 0.0]}, "falls at row 1"),
            ({"cpu": [1.0]}, "shape"),
            ({"cpu": ["a", "b"]}, "cpu"),
            ({"function": [0, 3], "function_names": ("a", "b")}, "reaches 3"),
            ({"function": [-1, 0]}, "function row 0"),
            ({"slo_s": [0.0, 1.0]}, "row 0"),
        ],
    )
    def test_a_trace_the_kernels_could_not_replay_is_refused(self, change, message):
        with pytest.raises(TraceError, match=message):
            FunctionTrace(**columns(**change))

    def test_node_tables_need_distinct_names_and_capacity(self):
        good = {"cpu": [1.0], "mem": [1.0], "net": [1.0], "disk": [1.0], "price_usd_per_hour": [0.0]}
        assert len(NodeTable(names=("a",), **good)) == 1
        with pytest.raises(TraceError, match="distinct"):
            NodeTable(names=("a", "a"), **{name: value * 2 for name, value in good.items()})
        with pytest.raises(TraceError, match=r"NodeTable\.mem row 0"):
            NodeTable(names=("a",), **{**good, "mem": [0.0]})
        with pytest.raises(TraceError, match="distinct names"):
            NodeTable(names=(), **{name: [] for name in good})

    def test_vm_traces_know_two_kinds(self):
        with pytest.raises(TraceError, match="kind row 0: 2"):
            VmTrace(vmid=[1], cpu=[1.0], mem=[1.0], time=[0.0], kind=[2])


class TestSynthetic:
    def test_the_asked_for_load_is_what_the_trace_asks_for(self):
        trace = synthetic_functions.serverless(40_000, 40, 100.0, 0.5, seed=0)
        asked = (trace.cpu * trace.duration_s).sum() / (trace.arrival_s[-1] * 100.0)
        assert asked == pytest.approx(0.5, rel=0.25)  # a day is not whole, and bursts are bursts
        assert len(trace) == 40_000

    def test_the_same_seed_gives_the_same_trace_and_another_one_another(self):
        one, again, other = (synthetic_functions.serverless(500, 10, 50.0, 0.5, seed=s) for s in (1, 1, 2))
        np.testing.assert_array_equal(one.arrival_s, again.arrival_s)
        assert (one.arrival_s != other.arrival_s).any()

    def test_few_functions_get_most_instances(self):
        trace = synthetic_functions.serverless(20_000, 40, 100.0, 0.5, seed=0)
        counts = np.sort(np.bincount(trace.function, minlength=40))[::-1]
        assert counts[:8].sum() > 0.5 * counts.sum()

    def test_nodes_take_the_types_of_the_price_list_in_turn(self):
        table = synthetic_functions.nodes(5, 900.0, 4000.0)
        assert table.cpu.tolist() == [8.0, 8.0, 4.0, 16.0, 8.0]
        assert table.price_usd_per_hour[3] == 0.68
        assert set(table.net.tolist()) == {900.0}


class TestAzure:
    def test_calls_become_instances_and_none_is_lost(self, tmp_path):
        trace, skipped = azure_functions.read(write(tmp_path, AZURE))
        assert skipped == 0
        assert trace.requests.sum() == 10
        # Seven calls of 20 s keep three containers of a minute busy; they take 3, 2 and 2 calls.
        third_minute = trace.arrival_s >= 120.0
        assert sorted(trace.requests[third_minute].tolist()) == [2, 2, 3]
        assert trace.response_s[third_minute].tolist() == [20.0] * 3
        assert trace.cpu[trace.function == 0].min() == pytest.approx(1.0)
        assert trace.cpu[trace.function == 1].tolist() == [0.1]
        assert trace.function_names == ("f1", "f2")
        assert (np.diff(trace.arrival_s) >= 0).all()

    @pytest.mark.parametrize(
        ("table", "text", "message"),
        [
            ("durations", AZURE["durations"].replace("500", "fast"), "line 2: could not convert"),
            ("memory", AZURE["memory"].replace(",10\n", ",-10\n"), "line 3: AverageAllocatedMb is -10"),
            ("invocations", AZURE["invocations"].replace("0,2,0", "0,-2,0"), "line 3: -2 calls"),
            ("invocations", AZURE["invocations"].replace("f2", "f1"), "line 3: .*twice"),
        ],
    )
    def test_a_bad_row_is_named_or_counted(self, tmp_path, table, text, message):
        write(tmp_path, AZURE, **{table: text})
        with pytest.raises(TraceError, match=message):
            azure_functions.read(tmp_path)
        trace, skipped = azure_functions.read(tmp_path, skip_bad=True)
        assert skipped >= 1
        assert len(trace.function_names) == 1

    def test_a_missing_table_or_column_is_named(self, tmp_path):
        write(tmp_path, AZURE)
        (tmp_path / "memory.csv").unlink()
        with pytest.raises(TraceError, match=r"memory\.csv"):
            azure_functions.read(tmp_path)
        (tmp_path / "memory.csv").write_text("a,b\n1,2\n")
        with pytest.raises(TraceError, match="HashFunction"):
            azure_functions.read(tmp_path)

    @pytest.mark.shared
    @pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public traces are not here")
    def test_the_public_sample_is_read_whole(self):
        trace, skipped = azure_functions.read(PUBLIC)
        assert (skipped, len(trace.function_names), int(trace.requests.sum())) == (0, 356, 731_771)


class TestByName:
    def test_a_csv_file_is_replayed_on_the_scenarios_nodes(self, tmp_path):
        path = tmp_path / "mine.csv.gz"
        path.write_bytes(gzip.compress((HEADER + "5,1,1,2,0,0,10,60\n0,0,2,2,10,100,5,30\n").encode()))
        env = make_vec("functions/serverless", 1, 0, path, nodes=3)
        assert env.trace.arrival_s.tolist() == [0.0, 5.0]
        assert env.trace.cpu.tolist() == [2.0, 1.0]
        assert len(env.table) == 3

    def test_a_folder_may_bring_its_nodes(self, tmp_path):
        (tmp_path / "functions.csv").write_text(HEADER + "0,0,1,1,0,0,1,60\n")
        (tmp_path / "nodes.csv").write_text("cpu,mem,net,disk,price_usd_per_hour\n2,4,100,100,0.1\n4,8,100,100,0.2\n")
        env = make_vec("functions/serverless", 1, 0, str(tmp_path))
        assert env.table.price_usd_per_hour.tolist() == [0.1, 0.2]

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("0,0,-1,1,0,0,1,60", "line 3: cpu is not positive"),
            ("0,0.5,1,1,0,0,1,60", "line 3: function is not a whole number"),
            ("0,0,1,1,0,0,0,60", "line 3: requests is not"),
            ("0,0,1,1,0,0,1", "line 3: 7 cells"),
            ("0,0,x,1,0,0,1,60", "line 3"),
        ],
    )
    def test_a_bad_row_is_named_or_counted(self, tmp_path, row, message):
        path = tmp_path / "functions.csv"
        path.write_text(HEADER + "0,0,1,1,0,0,1,60\n" + row + "\n")
        with pytest.raises(TraceError, match=message):
            functions.read(path)
        trace, _, skipped = functions.read(path, skip_bad=True)
        assert (len(trace), skipped) == (1, 1)
        with pytest.warns(UserWarning, match="1 bad rows skipped"):
            make_vec("functions/serverless", 1, 0, path, skip_bad_rows=True)

    def test_what_is_not_a_trace_is_refused(self, tmp_path):
        with pytest.raises(TraceError, match="does not exist"):
            make_vec("functions/serverless", 1, 0, tmp_path / "absent.csv")
        with pytest.raises(TraceError, match=r"functions\.csv"):
            make_vec("functions/serverless", 1, 0, tmp_path)
        with pytest.raises(ConfigError, match="pair"):
            make_vec("functions/serverless", 1, 0, (1, 2))
