"""What the C library does with memory that is given back, which decides what a benchmark sees.

By default glibc hands a block of some megabytes back to the system when it is freed, and takes it
anew at the next allocation: then every page of it faults, which costs more than a norm does and
happens or not by chance. :func:`keep_freed_memory` has it kept, so that times are those of the
computation; :func:`return_freed_memory` has it handed back at once, so that the memory of the
process is that of the tensors alive.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

# Parameters of mallopt, from glibc's malloc.h
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
NEVER = -1
LARGE = 64 * 1024


def keep_freed_memory() -> bool:
    """Let this process keep what it frees; False where the C library cannot be told."""
    return _set({MMAP_MAX: 0, TRIM_THRESHOLD: NEVER})


def return_freed_memory() -> bool:
    """Let blocks from 64 KiB leave this process when freed; False where it cannot be told."""
    return _set({MMAP_THRESHOLD: LARGE, TRIM_THRESHOLD: LARGE})


def _set(parameters: dict[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not all(mallopt(name, value) for name, value in parameters.items()):
        print("note: this C library's allocation stays as it is", file=sys.stderr)
        return False
    return True


def resident_mib() -> float:
    """The memory of this process now (Linux)."""
    return _status("VmRSS")


def peak_mib() -> float:
    """The most memory of this process so far (Linux)."""
    # not getrusage's ru_maxrss, which a new process inherits from the one that started it
    return _status("VmHWM")


def _status(entry: str) -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == entry:
            return int(value.split()[0]) / 1024
    raise OSError(f"/proc/self/status has no entry {entry}; memory is measured on Linux only")
