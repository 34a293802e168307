"""Chunks through several processes, in their order."""

from __future__ import annotations

import gzip
import os
import signal

import pytest

from prep import command_line, text_files, workers
from prep.messages import PrepError


def number_lines(lines: list[str]) -> list[str]:
    """Sent to other processes."""
    return [line.upper() for line in lines]


@pytest.mark.parametrize("count", [1, 2])
def test_lines_stay_in_order_whatever_the_number_of_processes(tmp_path, count):
    # More chunks than may wait at once.
    chunks = [[f"chunk {number}"] for number in range(30)]
    with workers.start_workers(count) as pool:
        made = list(pool.map(number_lines, chunks))
    assert made == [[f"CHUNK {number}"] for number in range(30)]


def test_an_input_error_passes_through_the_processes(tmp_path):
    whole = gzip.compress("".join(f"{number}\n" for number in range(9000)).encode())
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with workers.start_workers(2) as pool, pytest.raises(PrepError, match=r"cut\.gz is truncated"):
        list(pool.map(number_lines, workers.chunked(text_files.read_lines(path))))


def test_without_a_number_there_is_a_process_for_each_core_of_the_job(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(77)))
    parser = command_line.parser_of(None)
    assert parser.parse_args(["--out", "corpus"]).workers == 77


def be_killed(lines: list[str]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does for lack of memory


def test_a_killed_worker_is_an_error_and_not_waited_for():
    killed = pytest.raises(PrepError, match=r"one of 2 workers was killed, .*; pass a smaller -")
    with killed, workers.start_workers(2) as pool:
        list(pool.map(be_killed, [["a"]] * 30))
