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
    """Run a command; a failure that the user can mend is one line on stderr and exit status 1.

    SIGTERM and SIGHUP are met as SIGINT is: what was begun is cleared away, the processes that
    were started have ended, and the exit status is 128 and the signal.
    """
    try:
        with _stopped_in_order():
            main()
    except (PrepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except MemoryError:
        print("error: there is not enough memory; pass a smaller --workers", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        number = signal.Signals(stop.args[0] if stop.args else signal.SIGINT)
        print(f"error: stopped by {number.name}; nothing is left half-written", file=sys.stderr)
        sys.exit(128 + number)


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of the signals that stop a process; ignore the next."""
    usual = (signal.SIG_DFL, signal.default_int_handler)  # not where nohup has it ignored
    before = {each: signal.getsignal(each) for each in STOPPING}
    mine = [each for each, handler in before.items() if handler in usual]

    def stop(number: int, frame: Any) -> None:
        for each in mine:  # clearing away is soon done, and half of it is worse than none
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    for each in mine:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each in mine:
            signal.signal(each, before[each])
