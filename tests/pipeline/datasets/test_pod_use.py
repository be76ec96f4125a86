"""What pods used is looked at pod by pod: blocks of a few pods hold what one table of all of them would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets import pod_use
from pipeline.forecast import methods
from sched_env.pods import forecast


def table(windows: int, pods: int, seed: int) -> np.ndarray:
    """Pods that come, go and are missed now and then; each is there at least once."""
    rng = np.random.default_rng(seed)
    use = rng.lognormal(0.0, 1.0, (windows, pods, 2))
    begin, stay = rng.integers(windows, size=pods), rng.integers(1, windows + 1, size=pods)
    at = np.arange(windows)[:, None]
    use[(at < begin) | (at >= begin + stay) | ((rng.random((windows, pods)) < 0.1) & (at != begin))] = np.nan
    return use


def of_table(use: np.ndarray) -> pod_use.Use:
    pod, window = np.nonzero(~np.isnan(use[:, :, 0]).T)
    return pod_use.Use([f"p{number:04d}" for number in range(use.shape[1])], pod, window, use[window, pod])


@given(st.integers(1, 700), st.integers(1, 12), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_blocks_hold_every_row_once(windows: int, pods: int, seed: int, at_once: int) -> None:
    use = table(windows, pods, seed)
    again = np.full_like(use, np.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_use, "MOST_AT_ONCE", at_once)
        blocks = list(of_table(use).blocks())
    for block in blocks:
        assert len(block.pods) <= at_once
        assert not np.isnan(block.mean[[0, -1]]).all(axis=(1, 2)).any(), "no window in vain at the ends"
        again[block.first : block.first + len(block.mean), block.pods] = block.mean
    np.testing.assert_array_equal(again, use)
    assert sorted(np.concatenate([block.pods for block in blocks])) == list(range(pods))


@given(st.integers(2, 700), st.integers(1, 9), st.integers(0, 2**32 - 1), st.data())
def test_what_is_asked_of_blocks_is_what_is_asked_of_the_whole(
    windows: int, pods: int, seed: int, data: st.DataObject
) -> None:
    use = table(windows, pods, seed)
    first = data.draw(st.integers(0, windows - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_use, "MOST_AT_ONCE", 2)
        patch.setattr(methods, "MOST_ROWS", 400)
        whole, some = methods.asked(use, first), of_table(use)
        every = methods.thinned(some.followed(first))
        parts = methods.together(
            [methods.asked(block.mean, first, begin=block.first, every=every) for block in some.blocks()]
        )

    def in_order(found: methods.Asked) -> list[bytes]:
        return sorted(
            np.int64(window).tobytes() + known.tobytes() + truth.tobytes()
            for known, truth, window in zip(found.known, found.truth, found.window, strict=True)
        )

    assert in_order(parts) == in_order(whole)


def test_a_forecast_is_asked_row_by_row() -> None:
    use = table(500, 7, 3)
    some = of_table(use)
    order = np.random.default_rng(0).permutation(some.pod.size)
    pod, window = some.pod[order], some.window[order]

    def model(ports: dict[str, np.ndarray]) -> np.ndarray:
        return ports[forecast.ROWS][:, :8] * np.float32(2.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pod_use, "MOST_AT_ONCE", 3)
        said = pod_use.expected(some, model, pod, window)  # type: ignore[arg-type]
    np.testing.assert_array_equal(said, 2.0 * forecast.rows_of(use, window, pod)[:, :8])
    np.testing.assert_array_equal(some.at(pod, window), use[window, pod])


def test_of_no_pods_nothing_is_asked() -> None:
    none = pod_use.Use([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 2)))
    assert none.followed(0) == 0
    assert len(methods.together([methods.asked(block.mean, begin=block.first) for block in none.blocks()]).truth) == 0
