import msgspec
import pytest

from pipeline import settings
from wire.errors import ConfigError


class Example(msgspec.Struct, forbid_unknown_fields=True):
    days: int
    rate_per_s: float = 1.0


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text("outer:\n  inner: {days: 3}\n  typo: {dayz: 3}\n  wrong: {days: three}\n")
    return path


def test_a_nested_section_is_decoded(params):
    assert settings.load("outer.inner", Example, params) == Example(days=3, rate_per_s=1.0)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("outer.typo", ["dayz", "days, rate_per_s"]),
        ("outer.wrong", ["int", "$.days"]),
        ("outer.absent", ["outer.absent", "one of inner, typo, wrong"]),
        ("absent", ["absent", "one of outer"]),
    ],
)
def test_a_bad_section_is_named_with_what_would_be_right(params, section, words):
    with pytest.raises(ConfigError) as caught:
        settings.load(section, Example, params)
    for word in ["params.yaml", *words]:
        assert word in str(caught.value)


def test_a_missing_file_says_where_to_run(tmp_path):
    with pytest.raises(ConfigError, match="repository's root"):
        settings.load("x", Example, tmp_path / "nowhere.yaml")


def test_the_environment_moves_var(monkeypatch, tmp_path):
    monkeypatch.setenv(settings.VAR_ENV, str(tmp_path))
    assert settings.var() == tmp_path
