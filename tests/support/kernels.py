"""The OpenBLAS kernels that this CPU can run, for tests and benchmarks that start a process with each kernel."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from functools import cache

#: Machine -> OpenBLAS kernel -> NumPy's names for the instructions that the kernel needs. For each of these kernels,
#: npformer has a method that gives the same bits.
KERNELS = {
    "x86_64": {
        "SkylakeX": ("AVX512_SKX",),
        "Haswell": ("AVX2", "FMA3"),
        "Sandybridge": ("AVX",),
        "Nehalem": ("SSE42",),
        "Prescott": ("SSE3",),
    },
    "aarch64": {"ARMV8": (), "NEOVERSEN1": ("ASIMDHP",), "NEOVERSEV1": ("SVE",)},
}
#: Products that NumPy computes without npformer, at sizes at which some builds of OpenBLAS crash.
PLAIN = """
import numpy as np
for dtype in ("float32", "float64"):
    np.ones((96, 1100), dtype) @ np.ones((1100, 96), dtype)
"""
#: The kernels that `working` skipped, one line each; conftest.py prints them below the results.
left_out: list[str] = []


def of_this_machine() -> list[str]:
    """Returns the kernels whose instructions this CPU has."""
    from numpy._core._multiarray_umath import __cpu_features__ as has

    kernels = KERNELS.get(platform.machine(), {})
    return [name for name, needs in kernels.items() if all(has.get(each, False) for each in needs)]


@cache
def working() -> list[str]:
    """Returns the kernels with which NumPy's products do not crash. npformer could not prevent such a crash."""
    names = []
    for name in of_this_machine():
        ran = subprocess.run([sys.executable, "-c", PLAIN], env=under(name), capture_output=True, check=False)
        if ran.returncode < 0:
            left_out.append(f"left out: the {name} kernels, because NumPy's own products crash with them: {stop(ran)}")
        else:
            names.append(name)
    return names


def under(name: str) -> dict[str, str]:
    """Returns the environment for a process that uses this kernel."""
    return os.environ | {"OPENBLAS_CORETYPE": name}


def stop(ran: subprocess.CompletedProcess) -> str:
    """Returns the name of the signal that ended a process, such as SIGSEGV."""
    return signal.Signals(-ran.returncode).name
