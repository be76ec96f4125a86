"""Compiled and plain are the same, and a stale cache is not used."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from sched_env import jit
from sched_env.vm import heuristics as vm

SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
if "plain" in sys.argv:
    sys.modules["numba"] = None
import numpy as np
from sched_env import heuristics, jit
from sched_env.vector import make_vec
assert jit.COMPILED == ("plain" not in sys.argv)
import hashlib
digest = hashlib.sha256()
for keys in ({}, {"ending": "wait"}):
    env = make_vec("vm/recovering", 2, seed=3, servers=2, **keys)
    env.reset(seed=3)
    rules = [heuristics.batch(name, env) for name in ("random_feasible", "fragmentation", "best_fit")]
    for step in range(60):
        _, reward, *_ = env.step(rules[step % 3]())
        for array in (*env.observe().values(), reward, env.state.cpu, env.state.mem):
            digest.update(np.ascontiguousarray(array).tobytes())
print(digest.hexdigest())
"""


def test_plain_python_gives_the_same_bits_as_compiled_code():
    digests = {
        mode: subprocess.run(
            [sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True
        ).stdout.strip()
        for mode in ("compiled", "plain")
    }
    assert digests["compiled"] == digests["plain"] != ""


@pytest.mark.skipif(not jit.COMPILED, reason="numba is not installed")
def test_a_changed_helper_or_constant_in_another_file_gives_another_stamp(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    helper, user = tmp_path / "stamp_helper.py", tmp_path / "stamp_user.py"
    user.write_text(
        textwrap.dedent("""
            from sched_env.jit import kernel, part
            import stamp_helper
            LIMIT = stamp_helper.LIMIT
            double = part(stamp_helper.double)
            @kernel
            def apply(x):
                return double(x) + LIMIT
        """)
    )

    def stamp(body, limit):
        helper.write_text(f"LIMIT = {limit}\ndef double(x):\n    return {body}\n")
        for name in ("stamp_helper", "stamp_user"):
            sys.modules.pop(name, None)
            spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return module.apply._cache._cache_file._source_stamp, module.apply(np.float64(3.0))

    first, second, third = stamp("x * 2", 0), stamp("x * 2 + 1", 0), stamp("x * 2", 7)
    assert len({first[0], second[0], third[0]}) == 3
    assert (first[1], second[1], third[1]) == (6.0, 7.0, 13.0)


@pytest.mark.skipif(not jit.COMPILED, reason="numba is not installed")
def test_loops_filled_in_by_two_problems_have_caches_and_stamps_of_their_own():
    from sched_env.pods.batch import choose as pods_choose
    from sched_env.vm.batch import choose as vm_choose

    files = [kernel._cache._cache_file for kernel in (vm_choose, pods_choose)]
    assert files[0]._index_path != files[1]._index_path
    named = [repr(file._source_stamp) for file in files]
    assert "half_score" in named[0]  # a part of a part: a change there makes the cache stale
    assert "node_score" in named[1]
    assert "half_score" not in named[1]


score = jit.part(vm.half_score)


@jit.kernel
def score_in_kernel(arguments):
    return score(*arguments)


def test_a_part_and_its_helpers_give_the_same_in_a_kernel_called_from_python_and_plain():
    arguments = (vm.FRAGMENTATION, 0, 10.0, 20.0, 30.0, 40.0, 40.0, 90.0, 1.0, 2.0, 0.0, 9.0, 5.0, vm.TYPICAL_REQUESTS)
    assert score_in_kernel(arguments) == score(*arguments) == vm.half_score(*arguments)
