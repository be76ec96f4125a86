"""The first load of a strange policy, in a process of its own: a native crash or a memory bomb ends there.

The bytes travel through standard input, so the child checks exactly what the parent holds. It runs with limits on
memory, CPU time and files, without the parent's environment, and says in one line why it refuses.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from placement.errors import StoreError
from wire.errors import EXIT_USER_ERROR, BundleError, run_cli

if TYPE_CHECKING:
    from placement.settings import Settings  # the child limits itself before it imports anything of size

MIB = 1024 * 1024

_PASSED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


def run(files: Mapping[str, bytes], settings: Settings) -> None:
    """Check, load and exercise a bundle in a child process; raises :class:`BundleError` when that does not end well."""
    timeout_s = settings.trial_timeout_s
    environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    limits = (settings.trial_memory_mib, int(timeout_s) + 1)
    asked = (settings.batch_rows, settings.deadline_ms, settings.policy_memory_mib)
    command = [sys.executable, "-B", "-m", "placement.trial", *map(str, limits + asked)]
    try:
        child = subprocess.run(
            command,
            input=msgspec.msgpack.encode(dict(files)),
            capture_output=True,
            timeout=timeout_s,
            env=environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            check=False,
        )
    except OSError as error:  # no memory, no process left: says nothing about the bundle, and can be tried again
        raise StoreError(f"the trial cannot be started: {error}", "memory and a process for it") from error
    except subprocess.TimeoutExpired as error:
        raise BundleError(f"the trial load took longer than {timeout_s:g} s", "a policy that loads in time") from error
    said = child.stderr.decode(errors="replace").strip().splitlines()
    if child.returncode < 0:
        raise BundleError(f"the trial load crashed with {signal.Signals(-child.returncode).name}", "a clean load")
    if child.returncode == EXIT_USER_ERROR and said:
        raise BundleError(said[-1].removeprefix("error: "))
    if child.returncode:
        raise BundleError(f"the trial load failed: {said[-1] if said else child.returncode}", "a clean load")


def main() -> int:
    """Run in the child: limit ourselves before the heavy imports, then check, load, replay and warm up."""
    memory, cpu_s = int(sys.argv[1]) * MIB, int(sys.argv[2])
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
    ):
        hard = resource.getrlimit(kind)[1]
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit on address space
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    files = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=dict[str, bytes])
    from placement.policy import TrialLimits, exercise, open_policy
    from wire import bundle, graph

    checked = bundle.check(files)
    graph.runtime()  # its own size is no fault of the policy
    before = _peak_mib()
    limits = TrialLimits(int(sys.argv[3]), float(sys.argv[4]) / 1e3, int(sys.argv[5]))
    exercise(open_policy(checked, key=""), limits)
    grown = _peak_mib() - before
    if grown > limits.memory_mib:
        raise BundleError(f"the policy takes {grown:.0f} MiB of memory", f"at most {limits.memory_mib}")
    return 0


def _peak_mib() -> float:
    """Return the most memory this process has held; of the resource usage, Linux keeps the parent's peak over exec."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (MIB if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    run_cli(main)
