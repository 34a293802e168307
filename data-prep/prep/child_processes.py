"""Child processes that end when their parent ends, even if it is killed.

On request, Linux kills a process when its parent dies, also by `kill -9` (prctl(2),
PR_SET_PDEATHSIG). Every process that is started here makes this request before anything else.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
# Not `python -m`: the child must make its request before it runs the module.
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from prep import child_processes; "
    "del sys.path[0]; child_processes.run_here(int(sys.argv[2]), sys.argv[3], sys.argv[4:])"
)
MEMORY = "probably because memory ran out; pass a smaller --workers"

_forking = 0  # the process that is about to fork, as its child will read it


def end_with(parent: int) -> None:
    """Ask to be killed when the parent, process `parent`, ends; exit if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the request
        os._exit(1)


def run_module(name: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a module as `python -m` does, in a process that ends with this one.

    Returns its exit status and its output, stderr included. The process inherits the lock of
    `locks.only_one_process`, so nobody else can take the lock before it has ended.
    """
    own = [str(Path(__file__).parents[1]), str(os.getpid())]
    return subprocess.run(
        [sys.executable, "-c", START, *own, name, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        close_fds=False,
    )


def run_here(parent: int, name: str, arguments: Sequence[str]) -> None:
    """The child's side of `run_module`: the module and the processes it forks end with `parent`."""
    end_with(parent)
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
    _end_without_a_killed_worker()
    sys.argv = [name, *arguments]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _before_fork() -> None:
    global _forking
    _forking = os.getpid()


def _after_fork() -> None:
    end_with(_forking)


def _end_without_a_killed_worker() -> None:
    """Exit if a worker is killed; multiprocessing.Pool would wait forever for its result.

    All code that asks for a worker's exit status goes through `poll`, so no other thread can take
    the status away first. SIGTERM is excluded: Pool itself ends its workers by it.
    """
    poll = popen_fork.Popen.poll

    def watched(worker: Any, flag: int = os.WNOHANG) -> int | None:
        status = poll(worker, flag)
        if status is not None and status < 0 and -status != signal.SIGTERM:
            os.write(2, f"a worker was killed by signal {-status}, {MEMORY}\n".encode())
            os._exit(1)
        return status

    setattr(popen_fork.Popen, "poll", watched)  # noqa: B010 (mypy refuses an assignment)
