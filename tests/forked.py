"""Commands as a user runs them, each in a process forked off this one.

This process has paid for importing torch and fairseq, which takes seconds. What else a fresh
interpreter would have is restored in the new process: arguments, folder, streams and loggers.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NoReturn

import torch
import torch._dynamo  # the first optimizer of a process would, which takes two seconds
from fairseq import checkpoint_utils

ROOT = Path(__file__).resolve().parents[1]
WARM_PYTHON = [sys.executable, "-S", "-E", str(Path(__file__).with_name("warm_python.py"))]
"""The command that requests a process from the server of :func:`serve`."""
SECONDS = 300  # after which a process that hangs is ended


def run_forked(target: str | Path, *argv: object, stdin: str = ""):
    """Run ``python -m target argv``, or the file ``target``; returns the finished process."""
    command = [str(target), *map(str, argv)]
    if not isinstance(target, Path):
        command.insert(0, "-m")
    with ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin.encode())
        given.seek(0)
        child = os.fork()
        if child == 0:
            os.dup2(given.fileno(), 0)
            sys.stdin = os.fdopen(0, closefd=False)
            be(run_as_main, command, (out.fileno(), err.fileno()), ROOT)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(command, code, _text(out), _text(err))


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


def be(
    run: Callable[[list[str]], int],
    argv: list[str],
    streams: Sequence[int],
    folder: Path,
    tell: Callable[[int], object] = lambda code: None,
) -> NoReturn:
    """Run ``run(argv)`` in a forked process, and end with its status.

    Args:
        streams: the file descriptors that become stdout and stderr.
        tell: is told the exit status.
    """
    code = 99
    try:
        signal.alarm(SECONDS)
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
        # closefd: the object that stood for stdout before must not close it when it goes
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        os.chdir(folder)
        code = run(argv)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  nothing may come back into pytest
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        tell(code)
        os._exit(code)


def run_as_main(argv: list[str]) -> int:
    """Be ``python argv``, where argv begins with a file, or with -m and a module."""
    torch.set_num_threads(1)  # threads of this process do not live on in a forked one
    forget()
    is_module = argv[0] == "-m"
    sys.argv = argv[is_module:]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(argv[0])))
    try:
        (runpy.run_module if is_module else runpy.run_path)(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  what Python would do
        traceback.print_exc()
        return 1
    return 0


def forget() -> None:
    """Undo what pytest and earlier tests have set in this process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.NOTSET)
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.handlers.clear()
            logger.setLevel(logging.NOTSET)
            logger.propagate, logger.disabled = True, False
    vars(checkpoint_utils.save_checkpoint).pop("best", None)  # of an earlier training


def serve(run: Callable[[list[str]], int] = run_as_main) -> None:
    """Fork a server for ``WARM_PYTHON``, which lives as long as this process.

    It forks a process for each client, in the session of this one, that calls ``run``.
    """
    os.environ["FORK_SERVER"] = f"fork-server-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + os.environ["FORK_SERVER"])
    listener.listen()
    end, alive = os.pipe()  # the system closes its other end when this process ends
    if os.fork() > 0:
        listener.close()
        return
    os.close(alive)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes
    while end not in select.select([listener, end], [], [])[0]:
        client, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(client, run)
    os._exit(0)


def _answer(client: socket.socket, run: Callable[[list[str]], int]) -> NoReturn:
    """Be the process that a client asks for, and tell it the exit status."""
    text, streams, _, _ = socket.recv_fds(client, 1 << 20, 2)
    while not text.endswith(b"\n"):
        text += client.recv(1 << 20)
    request = json.loads(text)
    os.environ.clear()
    os.environ.update(request["environment"])
    be(run, request["argv"], streams, request["folder"], lambda code: client.sendall(b"%d" % code))
