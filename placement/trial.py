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

import msgspec

from placement.errors import StoreError
from wire.errors import EXIT_USER_ERROR, BundleError, run_cli

MIB = 1024 * 1024

_PASSED_ON = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")


def run(files: Mapping[str, bytes], *, timeout_s: float, memory_mib: int) -> None:
    """Check and load a bundle in a child process; raises :class:`BundleError` when that does not end well."""
    environ = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    command = [sys.executable, "-B", "-m", "placement.trial", str(memory_mib), str(int(timeout_s) + 1)]
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
    from placement.policy import open_policy
    from wire import bundle

    open_policy(bundle.check(files), key="")
    return 0


if __name__ == "__main__":
    run_cli(main)
