import pytest

from pipeline.errors import DataError
from pipeline.prices import format_prices, read_prices


def test_a_table_survives_the_round_trip(tmp_path):
    prices = {"m5.large": 0.096, 'odd, "name"': 1.5, "free": 0.0}
    (tmp_path / "p.csv").write_bytes(format_prices(prices))
    assert read_prices(tmp_path / "p.csv") == prices


def test_other_columns_blanks_and_a_byte_order_mark_are_ignored(tmp_path):
    (tmp_path / "p.csv").write_text("\ufeffregion, instance_type, usd_per_hour\neu,m5.large, 0.1\n", encoding="utf-8")
    assert read_prices(tmp_path / "p.csv") == {"m5.large": 0.1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("type,price\na,1\n", r"no column instance_type, usd_per_hour"),
        ("", r"no column"),
        ("instance_type,usd_per_hour\na,x\n", r"line 2: usd_per_hour is 'x'"),
        ("instance_type,usd_per_hour\na,-1\n", r"line 2: usd_per_hour is '-1'"),
        ("instance_type,usd_per_hour\na,0,10\n", r"line 2: more cells than the header has.*a point, not a comma"),
        ("instance_type,usd_per_hour\na,1_000\n", r"usd_per_hour is '1_000'"),
        ("instance_type,usd_per_hour\na,nan\n", r"usd_per_hour is 'nan'"),
        ("instance_type,usd_per_hour\na\n", r"usd_per_hour is None"),
        ("instance_type,usd_per_hour\n,1\n", r"empty instance_type"),
        ("instance_type,usd_per_hour\n", r"holds no price"),
        ("instance_type,usd_per_hour,usd_per_hour\na,1,2\n", r"usd_per_hour is there twice"),
        ("instance_type,usd_per_hour\n" + "a" * 200_000 + ",1\n", r"not a CSV.*field larger"),
        ("instance_type,usd_per_hour\na,1\nb,2\na,3\n", r"line 4: 'a' has the prices 1.0 and 3.0"),
    ],
)
def test_a_wrong_table_names_line_and_reason(tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_prices(tmp_path / "p.csv")


def test_a_table_that_is_no_text_or_not_there(tmp_path):
    (tmp_path / "p.csv").write_bytes(b"\xff\xfe\x00instance")
    with pytest.raises(DataError, match="UTF-8"):
        read_prices(tmp_path / "p.csv")
    with pytest.raises(DataError, match=r"ingest\.prices"):
        read_prices(tmp_path / "none.csv")
