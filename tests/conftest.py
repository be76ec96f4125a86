"""Order of the whole suite, and how long a test may take.

The order is random and its seed is printed; ``make test PYTEST_ARGS=--randomly-seed=SEED`` repeats it.
"""

import pytest

LONG_MARKERS = ("airflow", "kube", "spark", "browser", "prometheus", "s3", "shared", "slow", "soak")
"""What takes long by nature: servers to start, days to clean, policies to train. The rest has ``timeout`` seconds."""

LONG_FOLDERS = ("tests/sched_env", "tests/pipeline/policies")
"""Where a test may be the first to need a kernel: numba compiles those of one problem in up to 70 s of CPU, once."""

LONG_TIMEOUT_S = 600


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with what waits most (a real Airflow), so that the other worker has everything else to do meanwhile."""
    for item in items:
        long = item.nodeid.startswith(LONG_FOLDERS) or any(map(item.get_closest_marker, LONG_MARKERS))
        if long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
    items.sort(key=lambda item: item.get_closest_marker("airflow") is None)
