"""All child processes end with the command that started them, however it ends."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from prep import binarize, locks, publishing, text_files
from prep.messages import PrepError
from prep.text_files import SPLITS

DATA_PREP = Path(publishing.__file__).parents[1]

# In place of fairseq-preprocess: forks as it does, names all its processes, and never ends.
NEVER_ENDS = """
import os, signal, sys
from multiprocessing import Pool

def work(_):
    say()
    signal.pause()

def say():
    with open(os.environ["SAID"], "w") as said:
        said.write(f"{os.getpid()}\\n")

if __name__ == "__main__":
    say()
    Pool(2).map(work, range(2), chunksize=1)
"""
COMMAND = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from prep import binarize, exit_status, manifest, publishing
for number in exit_status.STOPPING:  # whatever the tests themselves were started with
    signal.signal(number, signal.SIG_DFL)
out = Path(sys.argv[2])
def build(work):
    (work / "half").write_text("")
    binarize.binarize(out / "tok", out / "bin", work, "en", "de", True, 2)
recipe = manifest.read_manifest(out)
exit_status.run_command(lambda: publishing.publish_binarized(out, recipe, build, False))
"""


@pytest.fixture
def fake_fairseq(tmp_path, monkeypatch):
    """Gives `python -m fairseq_cli.preprocess` another text to run."""

    def write(text):
        folder = tmp_path / "fake" / "fairseq_cli"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "preprocess.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(folder.parent))

    return write


@pytest.fixture
def prepared(tmp_path):
    """A corpus with its text, to be binarized."""

    def build(work):
        for language in ("en", "de"):
            for split in SPLITS:
                text_files.write_lines(work / "tok" / f"{split}.{language}", ["a"])
            text_files.write_lines(work / "bin" / f"dict.{language}.txt", ["a 1"])
        return {}

    out = tmp_path / "a b" / "out"
    recipe = {"corpus": "tiny", "source": "en", "target": "de"}
    publishing.publish(out, recipe, build, overwrite=False)
    return out


def wait_for(descriptor, events=select.POLLIN):
    """Wait until the file is ready, but at most a minute."""
    poll = select.poll()
    poll.register(descriptor, events)
    assert poll.poll(60_000), "nothing happened in a minute"


def ended(pid):
    """A file that is ready when the process has ended; None if it has ended already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_process_outlives_the_command(tmp_path, monkeypatch, fake_fairseq, prepared, number):
    fake_fairseq(NEVER_ENDS)
    os.mkfifo(tmp_path / "said")
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    said = os.open(tmp_path / "said", os.O_RDWR)  # also a writer, so that it has no end
    command = [sys.executable, "-c", COMMAND, DATA_PREP, prepared]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        pids = ""
        while pids.count("\n") < 3:
            wait_for(said)
            pids += os.read(said, 1000).decode()
        assert (prepared / f"bin.tmp-{running.pid}" / "half").exists()
        descriptors = [ended(int(pid)) for pid in pids.split()]
        assert None not in descriptors
        running.send_signal(number)  # to it alone
        message = running.communicate(timeout=60)[1]
    for descriptor in descriptors:
        wait_for(descriptor)
        os.close(descriptor)
    os.close(said)
    # Nobody holds the lock, and what a kill has left is cleared by the next run.
    with open(prepared.parent / ".out.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if number == signal.SIGKILL:
        assert running.returncode == -number
        publishing.publish(prepared, {"corpus": "tiny"}, lambda work: {}, overwrite=False)
    else:
        assert running.returncode == 128 + number
        assert (
            message == f"error: stopped by {number.name}; run the same command again to continue\n"
        )
    assert sorted(path.name for path in prepared.iterdir()) == ["bin", "manifest.json", "tok"]


def test_the_lock_is_held_until_the_last_child_has_ended(tmp_path):
    # A second run that waits must not begin while a child of a killed first one still writes.
    with locks.only_one_process(tmp_path / "lock", "working") as _:
        child = subprocess.Popen(
            [sys.executable, "-c", "print(flush=True); input()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
    with child, open(tmp_path / "lock") as lock:
        child.stdout.readline()  # it has begun, and closed what it does not inherit
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        child.wait()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Only a worker, for which multiprocessing.Pool would wait forever.
        (
            "import os\nfrom multiprocessing import Pool\n"
            "def die(_): os.kill(os.getpid(), 9)\n"
            "Pool(2).map(die, range(2))\n",
            r"ended with 1: a worker was killed by signal 9, probably because memory ran out",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            r"fairseq-preprocess was killed by signal 9, probably because memory ran out; pass",
        ),
        ("print('why'); raise SystemExit(3)", r"fairseq-preprocess ended with 3: why"),
    ],
)
def test_a_killed_child_is_an_error(tmp_path, monkeypatch, fake_fairseq, text, message):
    fake_fairseq(text)
    # If it waits, not forever.
    monkeypatch.setattr(subprocess, "run", partial(subprocess.run, timeout=120))
    with pytest.raises(PrepError, match=message):
        binarize.binarize(tmp_path, tmp_path, tmp_path / "bin", "en", "de", True, 2)
