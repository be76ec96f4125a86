import gzip

import numpy as np
import pytest

from sched_env.traces.mixed import Layout, read_table
from wire.errors import TraceError

LAYOUT = Layout(numbers=("a",), optional=("b",), texts=("name",), times={"when": "iso"})
GOOD = "name,a,b,when,other\nx,1,2.5,2020-05-01 00:00:00,\ny,3,,2020-05-01 00:01:00,z\n"


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_names_numbers_and_times_are_read_by_column_name(tmp_path, name):
    table = read_table(write(tmp_path, GOOD, name), LAYOUT)
    assert table.texts["name"].tolist() == ["x", "y"]
    np.testing.assert_array_equal(table.numbers["a"], [1, 3])
    np.testing.assert_array_equal(table.numbers["b"], [2.5, np.nan])
    np.testing.assert_array_equal(np.diff(table.numbers["when"]), [60])
    assert table.numbers["when"][0] == 1588291200
    assert len(table) == 2


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,one,2,2020-05-01 00:00:00,", "a is not a finite number"),
        ("x,,2,2020-05-01 00:00:00,", "a is not a finite number"),
        ("x,inf,2,2020-05-01 00:00:00,", "a is not a finite number"),
        ("x,1,two,2020-05-01 00:00:00,", "b is not a finite number"),
        ("x,1,2,yesterday,", "when is not a time"),
        ("x,1,2", "3 cells, the header has 5"),
        ("x,-1,2,2020-05-01 00:00:00,", "a is negative"),
    ],
)
def test_a_bad_row_is_named_or_counted(tmp_path, row, reason):
    path = write(tmp_path, GOOD + row + "\n")

    def check(table):
        return {"a is negative": table.numbers["a"] < 0}

    with pytest.raises(TraceError, match=rf"t\.csv, line 4: {reason}"):
        read_table(path, LAYOUT, check)
    table = read_table(path, LAYOUT, check, skip_bad=True)
    assert (len(table), table.skipped) == (2, 1)


def test_missing_columns_empty_files_and_files_of_only_bad_rows_are_errors(tmp_path):
    for text, message in (
        ("name,a,b\n", "line 1: column 'when' is missing"),
        ("", "line 1: column 'a' is missing"),
        ("name,a,b,when\n", "no usable rows"),
        ("name,a,b,when\nx,y,z,t\n", "line 2"),
    ):
        with pytest.raises(TraceError, match=message):
            read_table(write(tmp_path, text), LAYOUT)
    with pytest.raises(TraceError, match=r"no usable rows \(1 bad\)"):
        read_table(write(tmp_path, "name,a,b,when\nx,y,z,t\n"), LAYOUT, skip_bad=True)


def test_a_file_cut_off_or_absent_is_an_error(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(GOOD.encode())[:-12])
    with pytest.raises(TraceError, match="cannot be read"):
        read_table(path, LAYOUT)
    with pytest.raises(TraceError, match="does not exist"):
        read_table(tmp_path / "none.csv", LAYOUT)
