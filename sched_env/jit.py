"""Compile kernels with numba where it is installed, and run the same functions as plain Python where it is not.

``kernel`` marks what Python calls; ``part`` marks what kernels call (``sched_env.parts``), ``inline`` what they call at
every step. Features and scoring stay plain in their own modules (the service must not import numba) and are compiled
here by the module of the kernel: ``features = part(vm.candidate_features)``.

No ``fastmath``: a result must not depend on whether a loop was vectorised, compiled or run by numpy.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

_njit: Any = None
try:
    from numba import njit as _njit
except ImportError:
    COMPILED = False
else:
    from sched_env import parts

    COMPILED = True

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = {"nogil": True, "error_model": "numpy"}


def part(function: Function) -> Function:
    """Compile a function, and the plain functions of ours that it calls, for use inside kernels."""
    return _part(function, forceinline=False)


def inline(function: Function) -> Function:
    """Compile a part that is copied into its callers: for what is called at every step.

    A call hands over the arrays of all tuples, hundreds of words; LLVM does not count that when it chooses.
    """
    return _part(function, forceinline=True)


def _part(function: Function, **options: Any) -> Function:
    if not COMPILED:
        return function
    compile_part = _njit(pipeline_class=parts.PartCompiler, **_OPTIONS, **options)
    return compile_part(_with_compiled_helpers(function))  # type: ignore[no-any-return]


def _with_compiled_helpers(function: Any) -> Any:
    """Return a twin of the function that finds compiled helpers where the original finds plain ones."""
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    helpers = {
        name: part(value)
        for name, value in named.items()
        if isinstance(value, FunctionType) and value.__module__.startswith("sched_env")
    }
    return _twin(function, helpers, function.__qualname__) if helpers else function


def _twin(function: Any, parts: dict[str, Any], qualname: str) -> Any:
    """Return a function of the same code that finds these parts under their names."""
    twin = FunctionType(function.__code__, {**function.__globals__, **parts}, function.__name__, function.__defaults__)
    twin.__qualname__, twin.__module__, twin.__doc__ = qualname, function.__module__, function.__doc__
    return twin


def filled_in(template: Function, owner: str, **parts: Callable[..., Any]) -> Function:
    """Return a twin of a function in which these parts stand where it names them: a loop written once for all problems.

    A closure would do the same but for the cache: numba names a compiled function in a closure differently in every
    process, and would compile anew each time.

    Args:
        template: The function; it calls the parts by name, as if its module defined them.
        owner: The ``__name__`` of the module that brings the parts; keeps the twins' cache files apart.
        parts: Compiled functions (``part``).
    """
    return _twin(template, parts, f"{owner}.{template.__qualname__}")  # type: ignore[no-any-return]


def kernel(function: Function) -> Function:
    """Compile a function that Python calls; the machine code is cached on disk."""
    return _compile(function)


def lean_kernel(function: Function) -> Function:
    """Compile a kernel that makes no arrays: without reference counting, which costs more than a step at 5 servers.

    Indexing, slicing and filling arrays is fine; whatever would need new memory does not compile.
    """
    return _compile(function, _nrt=False)


def entry(function: Function, *arguments: Any) -> Function:
    """Return a kernel's machine code for arguments of these very types.

    Finding the code for a call costs numba some 5 µs when arguments are tuples of arrays; calling it, 0.5 µs. Types
    are not looked at again: the caller must pass the same dtypes, dimensions and memory layout every time.
    """
    if not COMPILED:
        return function
    import numba

    types = tuple(numba.typeof(value) for value in arguments)  # type: ignore[no-untyped-call]
    return function.compile(types)  # type: ignore[attr-defined, no-any-return]


def _compile(function: Function, **options: Any) -> Function:
    if not COMPILED:
        return function
    compiled = _njit(cache=True, pipeline_class=parts.KernelCompiler, **_OPTIONS, **options)(function)
    # numba's cache looks at the kernel's own file only: a changed helper or constant of another module would
    # silently leave old code in use. Stamping the index with everything the kernel refers to closes that hole. By
    # content, not by time: what was compiled in one clone is good in another (pipeline.workspace hands it on).
    compiled._cache._cache_file._source_stamp = tuple(
        _stamp(one, set()) for one in (_compile, parts.PartLowering.run_pass, compiled.py_func)
    )
    return compiled  # type: ignore[no-any-return]


def _stamp(function: Any, seen: set[str]) -> tuple[Any, ...]:
    """Describe a function's source file and, recursively, the compiled functions and constants it names."""
    path = function.__code__.co_filename
    file = os.stat(path)  # noqa: PTH116 - runs for every kernel at import
    parts: list[Any] = [(function.__qualname__, _content(path, file.st_mtime_ns, file.st_size))]
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        inner = getattr(value, "py_func", None)
        if inner is not None and inner.__qualname__ + inner.__module__ not in seen:
            seen.add(inner.__qualname__ + inner.__module__)
            parts.append(_stamp(inner, seen))
        elif isinstance(value, int | float | str | np.generic):
            parts.append((name, value))
    return tuple(parts)


@cache
def _content(path: str, _mtime_ns: int, _size: int) -> str:
    """Name a source file by what it holds; read again when it has changed."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
