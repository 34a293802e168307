"""The peak memory of the commands of a run."""

from __future__ import annotations

import os
import sys

import pytest

from norm_lab.engine.process import run_process
from norm_plugin.io.command_line import CommandError

MIB = 2**20
HOLD = """
import sys
block = b"x" * (int(sys.argv[1]) * 2**20)
print(len(block), flush=True)
open(sys.argv[2]).close()  # until this line has been read
"""


def measure(tmp_path, size):
    """The memory of a Python that holds so many MiB."""
    fifo = tmp_path / f"{size}.fifo"
    os.mkfifo(fifo)

    def read(line):
        if line.strip().isdigit():
            fifo.open("w").close()

    return run(tmp_path, HOLD, str(size), str(fifo), read=read)


def run(tmp_path, program, *argv, read):
    lock = os.open(tmp_path / "lock", os.O_CREAT)
    try:
        return run_process(
            [sys.executable, "-S", "-c", program, *argv],
            folder=tmp_path,
            environment={},
            log=tmp_path / "log",
            read=read,
            lock=lock,
        )
    finally:
        os.close(lock)


@pytest.mark.parametrize("lines", [1, 10_000])  # in a buffer, and more
def test_a_full_disk_while_the_log_is_written_ends_the_command(lines, tmp_path):
    (tmp_path / "log").symlink_to("/dev/full")
    program = f"import os, sys; print(os.getpid(), 'x\\n' * {lines}, flush=True); sys.stdin.read()"
    seen = []
    with pytest.raises(CommandError, match="cannot write .*log: No space left on device"):
        run(tmp_path, program, read=seen.append)
    assert seen == []


def test_a_command_has_taken_at_least_what_it_held(tmp_path):
    small, large = measure(tmp_path, 1), measure(tmp_path, 65)
    # a Python alone takes less than 64 MiB, however large this process is
    assert 1 * MIB < small < 64 * MIB and large > 65 * MIB
