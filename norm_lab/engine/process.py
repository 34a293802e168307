"""Child processes, which end with this one, and their output."""

from __future__ import annotations

import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from norm_plugin.io.command_line import CommandError

DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--")
"""A command after this prefix ends with this process, even if this process is killed."""
SETTINGS = "{'_name': None, 'common'"
"""The start of the line of 15,000 characters in which fairseq prints its configuration."""
KEEP_FREED_MEMORY = (
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1"
)
"""GLIBC_TUNABLES with which a process keeps freed memory, in huge pages if available. By default, a
training on a CPU allocates new memory for each batch, with a page fault for each page."""
TAIL = 200  # lines of a failed command that are searched: chained tracebacks are long


class CommandFailedError(Exception):
    """A command failed: its exit status or signal, and the last lines that it printed."""

    def __init__(self, reason: str, tail: Sequence[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tail = list(tail)


def require_setpriv() -> None:
    """Raise CommandError if ``DIE_WITH_PARENT`` does not work here."""
    try:
        subprocess.run([*DIE_WITH_PARENT, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(
            "there is no setpriv command with --pdeathsig; install util-linux 2.33 or newer"
        ) from error


def run_process(
    command: Sequence[str],
    *,
    folder: Path,
    environment: dict[str, str],
    log: Path,
    read: Callable[[str], None],
    lock: int,
) -> int:
    """Run a command and wait for it.

    Args:
        folder: the working directory.
        log: its output is appended here, without fairseq's configuration.
        read: called with each line of its output.
        lock: a file descriptor that the command inherits, so that the lock is held until it ends.

    Returns:
        The command's peak memory in bytes when it printed its last line; 0 if unknown.

    Raises:
        CommandFailedError: the exit status of the command is not 0.
        CommandError: the log cannot be written; the command was terminated.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=TAIL)
    memory = 0
    with (
        _writing_log(log) as stream,
        subprocess.Popen(
            [*DIE_WITH_PARENT, *command],
            cwd=folder,
            env={
                "PYTHONWARNINGS": "ignore",
                "PYTHONUNBUFFERED": "1",
                "GLIBC_TUNABLES": KEEP_FREED_MEMORY,
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            pass_fds=(lock,),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if SETTINGS in line:
                    continue
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


@contextmanager
def _writing_log(log: Path) -> Iterator[TextIO]:
    """Return a context to append to a log; CommandError if its disk is full."""
    try:
        with open(log, "a", encoding="utf-8", errors="replace") as stream:
            yield stream
    except OSError as error:
        if error.filename not in (None, str(log)):  # the command could not be started
            raise
        raise CommandError(
            f"cannot write {log}: {error.strerror}; fix this, for example free some space, and "
            "start the run again"
        ) from error


def peak_memory(pid: int) -> int:
    """Return the peak resident set size of a process so far, in bytes; 0 if unknown.

    ``getrusage`` of an ended child is not used: its maximum includes the forked parent.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0  # not Linux, or the process has just ended
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(peak[1]) * 1024 if peak else 0


def exit_reason(code: int) -> str:
    """Describe how a process ended: ``exit status 1``, or the signal."""
    if code >= 0:
        return f"exit status {code}"
    hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"
