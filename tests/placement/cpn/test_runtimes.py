"""Tables of run times: asked once, in one batch; estimates where nobody answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from placement.cpn.runtimes import Asked, FromTable, Known, Tables
from sched_env.jobs import synthetic


class Counting(FromTable):
    def __init__(self) -> None:
        super().__init__(synthetic.runtime(("P100", "A100")), 1.2)
        self.batches: list[list[Asked]] = []

    def predict(self, asked: Sequence[Asked]) -> list[Known]:
        self.batches.append(list(asked))
        return super().predict(asked)


def test_every_set_is_asked_for_once_in_one_batch() -> None:
    source = Counting()
    tables = Tables(source)
    first, caution = tables.table(("P100", "A100"), ("cnn-small", "cnn-large"))
    tables.table(("P100", "A100"), ("cnn-small", "cnn-large"))
    tables.table(("P100", "A100"), ("cnn-large", "cnn-small", "llm-7b"))
    asked = [key for batch in source.batches for key in batch]
    assert len(source.batches) == 2
    assert len(asked) == len({(kind, tuple(sorted(models))) for kind, models in asked})
    assert caution == pytest.approx([1.2, 1.2])
    assert first.model_names == ("cnn-large", "cnn-small")
    whole = synthetic.runtime(("P100", "A100")).select(("P100", "A100"), first.model_names)
    np.testing.assert_allclose(first.seconds, whole.seconds)


class Down(Counting):
    def predict(self, asked: Sequence[Asked]) -> list[Known]:
        raise ConnectionError("the predictor is down")


class Nonsense(Counting):
    def predict(self, asked: Sequence[Asked]) -> list[Known]:
        return [Known((-1.0,) * len(models), (float("nan"),) * len(models)) for _, models in asked]


@pytest.mark.parametrize("source", [Down, Nonsense])
def test_a_predictor_that_is_down_gives_estimates_that_are_counted(source: type[Counting]) -> None:
    tables = Tables(source())
    table, _ = tables.table(("P100",), ("cnn-small",))
    assert (table.seconds > 0).all()
    assert np.isfinite(table.seconds).all()
    assert table.seconds[0, 0, 1, 0] == 2 * table.seconds[0, 0, 0, 0]
    assert tables.fallbacks == 3


def test_a_model_that_nobody_knows_has_a_card_to_itself() -> None:
    tables = Tables(Counting())
    table, _ = tables.table(("P100",), ("cnn-small", "new"))
    new = table.model_names.index("new")
    assert np.isfinite(table.seconds[new, 0, 0, 0])
    assert np.isinf(table.seconds[new, 0, 1, 0])
    assert np.isinf(table.seconds[0, 0, new + 1, 0])
    tables.learn("new", {"P100": 0.5})
    assert tables.table(("P100",), ("cnn-small", "new"))[0].seconds[new, 0, 0, 0] == 0.5
