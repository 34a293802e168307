"""The commands of a run: children that end with their parent, and whose output goes to a log."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from norm_plugin.commands.command_line import CommandError

PYTHON = [sys.executable]
"""Runs the commands of a run; tests put another in its place."""
TIED = ("setpriv", "--pdeathsig", "TERM", "--")
"""Before a command: it ends when this process does, even if that is killed."""
SETTINGS = "{'_name': None, 'common'"
"""In the line of 15,000 characters in which fairseq prints its configuration."""
KEEP_FREED_MEMORY = (
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1"
)
"""GLIBC_TUNABLES with which a process keeps the memory that it frees, in large pages where the
system has them. By default, a training on a CPU takes the memory of each batch from the system
anew, and every page of it faults."""
TAIL = 200  # lines kept of a command that failed: a traceback may hide its cause behind another


class CommandFailedError(Exception):
    """A command ended with another status than 0.

    Attributes:
        reason: one line, for a person.
        tail: the last lines that it printed.
    """

    def __init__(self, reason: str, tail: Sequence[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tail = list(tail)


def require_setpriv() -> None:
    """Raise CommandError where children cannot be tied to this process."""
    try:
        subprocess.run([*TIED, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(
            "no setpriv command that knows --pdeathsig; install util-linux 2.33 or newer"
        ) from error


def run_command(
    command: Sequence[str],
    *,
    folder: Path,
    environment: dict[str, str],
    log: Path,
    read: Callable[[str], None],
    lock: int,
    copied: bool = True,
) -> int:
    """Run a command to its end; raises CommandFailedError.

    Returns the peak memory of its process in bytes, as it was when the last line was printed; 0
    where it printed none to the log, or ``/proc`` does not tell.

    Args:
        folder: where it runs.
        log: what it prints is appended here, without fairseq's settings.
        read: called with each line of its stdout, and of its stderr where they are copied.
        lock: a file descriptor that it inherits, so that the lock is held until it has ended.
        copied: whether its stdout goes to the log; if not, only its stderr does.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=TAIL)
    memory = 0
    with (
        open(log, "a", encoding="utf-8", errors="replace") as stream,
        subprocess.Popen(
            [*TIED, *command],
            cwd=folder,
            env={
                "PYTHONWARNINGS": "ignore",
                "PYTHONUNBUFFERED": "1",
                "GLIBC_TUNABLES": KEEP_FREED_MEMORY,
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if copied else stream,
            text=True,
            encoding="utf-8",
            errors="replace",
            pass_fds=(lock,),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if copied and SETTINGS in line:
                    continue
                if copied:
                    stream.write(line)
                    stream.flush()
                    tail.append(line.rstrip("\n"))
                memory = max(memory, peak_memory(process.pid))
                read(line)
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        raise CommandFailedError(exit_reason(code), tail)
    return memory


def peak_memory(pid: int) -> int:
    """The largest resident set of a process so far, in bytes; 0 where it is not known.

    The kernel's account of a child that has ended will not do: it begins with that of the parent.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0  # not Linux, or the process has just ended
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(peak[1]) * 1024 if peak else 0


def last_lines(log: Path, start: int = 0) -> list[str]:
    """The last lines of a log after its byte ``start``."""
    with open(log, "rb") as stream:
        stream.seek(max(start, log.stat().st_size - 100_000))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    return [line for line in lines if SETTINGS not in line][-TAIL:]


def exit_reason(code: int) -> str:
    """How a process ended: ``exit status 1``, or the signal."""
    if code >= 0:
        return f"exit status {code}"
    hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"
