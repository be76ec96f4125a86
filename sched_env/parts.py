"""Compile what kernels call once, with the kernel: numba alone would finish every function by itself first.

Each function that a kernel calls would get wrappers for calls from Python, be optimised, made machine code, and then be
linked and optimised again in each of its callers. For functions whose arguments are tuples of dozens of arrays that is
two thirds of the wait for a first step. Here a part is only lowered; the kernel links all of them, once each, and
declares them its own, so that LLVM can copy in what is small or called once and drop the arguments that nobody reads.
The machine code is as fast as with everything copied in (docs/decisions/0024).
"""

# numba's compiler has no types.
# mypy: disable-error-code="no-untyped-call,attr-defined"
from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import binding as llvm
from numba import _dynfunc
from numba.core import codegen, compiler, typed_passes
from numba.core.compiler_machinery import register_pass

_METHOD = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
"""A C function that Python calls with self, arguments and keywords."""


class _Library(codegen.JITCodeLibrary):
    """Code that is optimised as a whole, not function by function before."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout


class PartLibrary(_Library):
    """A part as it was lowered, and the names of its own parts; never machine code."""

    def finalize(self) -> None:
        """Leave everything to the kernel."""
        self._finalized = True


class KernelLibrary(_Library):
    """A kernel with all its parts, and theirs."""

    def finalize(self) -> None:
        """Link every part once, then optimise and make machine code."""
        for library in self._linking_libraries:  # grows as it is walked
            if isinstance(library, PartLibrary):
                new = [one for one in library._linking_libraries if one not in self._linking_libraries]
                self._linking_libraries.extend(dict.fromkeys(new))
        super().finalize()

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = llvm.Linkage.internal
        super()._optimize_final_module()


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(typed_passes.NativeLowering):
    """Lower a function for kernels to link. Called from Python it runs as plain Python, with the same bits."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower, and register under a function that numba takes for the compiled one."""
        state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        super().run_pass(state)
        function, lowered = state.func_id.func, state["cr"]
        plain = _METHOD(lambda _self, arguments, _keywords: function(*arguments))
        address = ctypes.cast(plain, ctypes.c_void_p).value
        module, name = lowered.fndesc.lookup_module(), state.func_id.func_name
        stand_in = _dynfunc.make_function(module, name, "", address, lowered.env, (state.library, plain))
        state.targetctx.insert_user_function(stand_in, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=stand_in)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(typed_passes.NativeLowering):
    """Lower a kernel into a library that links parts."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower and compile; only Python calls a kernel."""
        state.flags.no_cfunc_wrapper = True
        state.library = KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


class PartCompiler(compiler.CompilerBase):
    """numba's compiler with another last step."""

    LOWERING: type[typed_passes.NativeLowering] = PartLowering

    def define_pipelines(self) -> list[Any]:
        """Return numba's passes with the lowering replaced."""
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (self.LOWERING if one is typed_passes.NativeLowering else one, said) for one, said in passes.passes
        ]
        passes.finalize()
        return [passes]


class KernelCompiler(PartCompiler):
    """The same for kernels."""

    LOWERING = KernelLowering
