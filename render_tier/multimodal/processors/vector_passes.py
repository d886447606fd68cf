"""The passes of a resize (`pass_code`) as machine code, compiled by llvmlite once in a process."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass

from render_tier.multimodal.processors import pass_code

_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Passes:
    """As `pass_code` describes them. Pointers are addresses, strides are in bytes, and no array of a call
    overlaps what it writes. Calls let other threads run."""

    across: Callable[..., None]
    down: Callable[..., None]
    engine: object
    """Owns the machine code."""


def passes() -> Passes | None:
    """None where llvmlite is not installed, or the CPU has no AVX2."""
    with _lock:
        return _kept_passes()


def compiled_passes() -> Passes | None:
    """The same, compiled anew: some 40 ms."""
    if platform.machine() != "x86_64" or os.name != "posix":
        return None
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    features = llvm.get_host_cpu_features()
    if not features.get("avx2"):
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    module = llvm.parse_assembly(pass_code.DECLARED + pass_code.across() + pass_code.down())
    module.triple = llvm.get_default_triple()
    module.data_layout = str(machine.target_data)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, *[ctypes.c_int64] * 7)
    across, down = (kind(engine.get_function_address(name)) for name in ("across", "down"))
    return Passes(across, down, engine)


_kept_passes = functools.cache(compiled_passes)
