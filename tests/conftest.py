"""Order of the whole suite, how long a test may take, and which ones are slow.

The order is random and its seed is printed; ``make test PYTEST_ARGS=--randomly-seed=SEED`` repeats it. What is slow is
measured, not guessed: ``make slow`` runs everything and writes ``tests/slow.txt``; ``make quick`` leaves those out.
"""

from collections import defaultdict
from pathlib import Path

import pytest

SLOW_FILE = Path(__file__).with_name("slow.txt")
SLOW_S = 2.0
"""Seconds above which a test is slow: all its cases together, because they are left out together."""

LONG_MARKERS = ("airflow", "kube", "spark", "browser", "prometheus", "s3", "shared", "slow", "soak")
"""What takes long by nature: servers to start, days to clean, policies to train. The rest has ``timeout`` seconds."""

LONG_FOLDERS = ("tests/sched_env", "tests/seeds", "tests/docs", "tests/pipeline", "tests/placement", "tests/test_")
"""Where a test may be the first to need a kernel: numba compiles those of one problem in up to 100 s of CPU, once."""

LONG_TIMEOUT_S = 600


def pytest_addoption(parser):
    parser.addoption("--write-slow", action="store_true", help=f"write {SLOW_FILE.name} from this run's durations")


def pytest_configure(config):
    # Workers report to the one that started them; only that one sees everything.
    if config.getoption("--write-slow") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items):
    """Mark before ``-m`` chooses and sort after the shuffle.

    What waits most (a real Airflow) begins, so that the other worker has everything else to do meanwhile.
    """
    slow = set(SLOW_FILE.read_text().split())
    for item in items:
        file, function = _names(item.nodeid)
        if file in slow or function in slow:
            item.add_marker("slow")
        long = file.startswith(LONG_FOLDERS) or any(map(item.get_closest_marker, LONG_MARKERS))
        if long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
    yield
    items.sort(key=lambda item: item.get_closest_marker("airflow") is None)


def _names(nodeid):
    """The file of a test, and its function without the case."""
    return nodeid.partition("::")[0], nodeid.partition("[")[0]


class Durations:
    """Sums up how long tests take."""

    def __init__(self):
        self.seconds = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        """A long set-up is a fixture that the file shares: which test pays for it is a matter of order."""
        file, function = _names(report.nodeid)
        self.seconds[file if report.when == "setup" and report.duration > SLOW_S else function] += report.duration

    def pytest_sessionfinish(self):
        """Write the list; a file that is slow as a whole needs no lines of its own functions."""
        slow = {name for name, seconds in self.seconds.items() if seconds > SLOW_S}
        lines = sorted(name for name in slow if "::" not in name or name.partition("::")[0] not in slow)
        SLOW_FILE.write_text("".join(f"{line}\n" for line in lines))
