"""How a command ends: errors in one line, and no process and no unfinished folder outlives it."""

from __future__ import annotations

import gzip
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

import toy
from norm_plugin.io.command_line import CommandError
from prep import folder, stages
from prep.files import lines_of
from prep.workers import CHUNK_LINES, map_chunks

DATA_PREP = Path(folder.__file__).parents[1]


# ---- workers ------------------------------------------------------------------------------------


def upper(lines: list[str]) -> list[str]:
    """Sent to other processes."""
    return [line.upper() for line in lines]


def be_killed(lines: list[str]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does for lack of memory


@pytest.mark.parametrize("workers", [1, 2])
def test_lines_stay_in_order_whatever_the_number_of_processes(workers):
    lines = [f"line {number}" for number in range(15 * CHUNK_LINES)]  # more chunks than may wait
    made = [line for chunk in map_chunks(upper, lines, workers, "text") for line in chunk]
    assert made == [f"LINE {number}" for number in range(len(lines))]


def test_an_input_error_passes_through_the_processes(tmp_path):
    whole = gzip.compress("".join(f"{number}\n" for number in range(9000)).encode())
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CommandError, match=r"cut\.gz is truncated"):
        list(map_chunks(upper, lines_of(path), 2, "text"))


def test_a_killed_worker_is_an_error_and_not_waited_for():
    with pytest.raises(CommandError, match=r"one of 2 workers was killed, .*; pass a smaller -"):
        list(map_chunks(be_killed, ["a"] * 5 * CHUNK_LINES, 2, "text"))


# ---- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left", "out/tok"), "error: [Errno 28] No space left: 'out/tok'\n"),
        (MemoryError(), "error: memory ran out; pass a smaller --workers\n"),
    ],
)
def test_an_error_is_one_line(capsys, error, line):
    def fail(argv):
        raise error

    with pytest.raises(SystemExit) as stop:
        stages.run(fail)
    assert stop.value.code == 1
    assert capsys.readouterr().err == line


NEVER_ENDS = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from prep import folder, stages, workers
for number in (signal.SIGTERM, signal.SIGHUP):  # whatever the tests themselves were started with
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
def wait(lines):
    with open(sys.argv[3], "w") as pipe:
        pipe.write(f"{os.getpid()}\\n")
    signal.pause()
def build(work):
    (work / "half").write_text("")
    list(workers.map_chunks(wait, ["a"] * 3 * workers.CHUNK_LINES, 2, "text"))
spec = {"corpus": "tiny", "source": "en", "target": "de"}
if __name__ == "__main__":
    stages.run(lambda argv: folder.publish(Path(sys.argv[2]), spec, build, False))
"""


def wait_for(descriptor):
    """Wait until the file is ready, but at most a minute."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(60_000), "nothing happened in a minute"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_the_command(tmp_path, number):
    script, out = tmp_path / "never_ends.py", tmp_path / "a b" / "out"
    script.write_text(NEVER_ENDS)
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)  # also a writer, so that it has no end
    command = [sys.executable, script, DATA_PREP, out, tmp_path / "pipe"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        pids = ""
        while pids.count("\n") < 2:
            wait_for(pipe)
            pids += os.read(pipe, 1000).decode()
        assert (out.parent / ".out.tmp/new/half").exists()
        descriptors = [os.pidfd_open(int(pid)) for pid in pids.split()]
        if number == signal.SIGKILL:
            running.kill()  # it alone
        else:
            running.send_signal(number)
            # The workers finish their chunks, as they would if these had an end.
            for descriptor in descriptors:
                signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        running.wait(timeout=60)
        for descriptor in descriptors:
            wait_for(descriptor)
            os.close(descriptor)
    os.close(pipe)
    left = sorted(path.name for path in out.parent.iterdir())
    with FileLock(out.parent / ".out.lock", blocking=False):  # nobody holds it
        pass
    if number == signal.SIGTERM:
        assert running.returncode == 128 + number
        assert left == [".out.lock"]
        return
    assert running.returncode == -number and left == [".out.lock", ".out.tmp"]
    sizes = ["--train", "3", "--valid", "1", "--test", "1"]
    toy.main(["--out", str(out), *sizes])  # it starts again
    assert sorted(path.name for path in out.parent.iterdir()) == [".out.lock", "out"]
    assert not (out / "half").exists()
