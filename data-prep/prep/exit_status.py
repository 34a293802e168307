"""How a command ends: errors and signals become one line on stderr and an exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prep.messages import PrepError

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_command(main: Callable[[], None]) -> None:
    """Run a command. An error that the user can fix is one line on stderr and exit status 1.

    SIGTERM and SIGHUP are handled like SIGINT: unfinished files are removed (an unfinished download
    stays, to be resumed), child processes have ended, and the exit status is 128 plus the number of
    the signal.
    """
    try:
        with _stopped_in_order():
            main()
    except (PrepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except MemoryError:
        print("error: memory ran out; pass a smaller --workers", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        number = signal.Signals(stop.args[0] if stop.args else signal.SIGINT)
        print(
            f"error: stopped by {number.name}; run the same command again to continue",
            file=sys.stderr,
        )
        sys.exit(128 + number)


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal of STOPPING, and ignore the next ones."""
    usual = (signal.SIG_DFL, signal.default_int_handler)  # leaves out what nohup ignores
    before = {each: signal.getsignal(each) for each in STOPPING}
    mine = [each for each, handler in before.items() if handler in usual]

    def stop(number: int, frame: Any) -> None:
        for each in mine:  # cleaning up is quick, and must not stop halfway
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    for each in mine:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each in mine:
            signal.signal(each, before[each])
