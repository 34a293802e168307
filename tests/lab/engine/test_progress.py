"""How far a stage is, from the lines that it prints, and how it is shown."""

from __future__ import annotations

import io
import sys
import threading
from types import SimpleNamespace

import pytest

from norm_lab.engine import grid
from norm_lab.engine.overview import running_lines
from norm_lab.engine.progress import Meter, ProgressDisplay, StepMeter, TrainingMeter, duration
from norm_lab.engine.state import RUNNING, WAITING, Status

HEAD = "2026-01-01 00:00:00 | INFO | "


def inner(updates, epoch=1, an_epoch=100):
    position = f"epoch {epoch:03d}:     {updates} / {an_epoch}"
    return f"{HEAD}train_inner | {position} loss=9, num_updates={updates}, lr=1"


def epoch_end(epoch, updates):
    return f"{HEAD}train | epoch {epoch:03d} | loss 9 | num_updates {updates} | lr 1"


def validation(epoch, updates):
    return f"{HEAD}valid | epoch {epoch:03d} | valid on 'valid' | loss 9 | num_updates {updates}"


class Clock:
    """Says the second that it is told."""

    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(meter, lines, stream):
    """A display whose meter has read ``lines``, [(second, line)]."""
    clock = Clock()
    display = ProgressDisplay("toy", stream, clock)
    display.begin("train")
    for clock.now, line in lines:
        meter.read(line)
        display.update(meter)
    return display


def meter_of(patience=-1, **optimization):
    """The meter of a training with these settings."""
    return TrainingMeter({"optimization": optimization, "checkpoint": {"patience": patience}})


def training(lines, **settings):
    meter = meter_of(**settings)
    return meter, shown(meter, lines, io.StringIO())


def test_the_rate_gives_the_time_that_is_left():
    _, display = training([(1, inner(10))], max_update=100)
    assert display.left is None  # one sight is no rate
    meter, display = training([(1, inner(10)), (11, inner(20))], max_update=100)
    assert (display.left, display.share, meter.text()) == (80, 0.2, "20 of 100 updates")


def test_a_resumed_run_counts_its_own_updates_only():
    _, display = training([(1, inner(5000)), (101, inner(5100))], max_update=6100)
    assert display.left == 1000  # 1,000 updates at one per second


@pytest.mark.parametrize(
    "lines",
    [
        [(0, inner(50, an_epoch=100)), (50, inner(100, an_epoch=100))],
        [(0, epoch_end(1, 100)), (100, epoch_end(2, 200))],  # all that a terminal's bar leaves
        [(0, inner(10)), (1, validation(1, 50))],  # --validate-interval-updates 50
    ],
)
def test_epochs_are_counted_in_updates(lines):
    assert training(lines, max_epoch=3)[0].total == 300


def test_the_earlier_end_counts():
    assert training([(0, inner(10))], max_update=500, max_epoch=2)[0].total == 200


def test_early_stopping_is_an_upper_bound():
    meter, _ = training([(0, inner(10))], max_update=100, patience=5)
    assert meter.text() == "10 of 100 updates or fewer"


def test_no_planned_end_no_estimate():
    meter, display = training([(0, inner(10)), (10, inner(20))], patience=5)
    assert display.left is None and display.share is None
    assert meter.text() == "20 updates or fewer"


def test_the_steps_after_the_training_say_what_they_count():
    steps = []
    meter = StepMeter(steps.append)
    lines = ["progress: average 0 of 0 ", "H-1", "progress: generate 3 of 10 sentences"]
    display = shown(meter, [(0, lines[0]), (4, lines[1]), (4, lines[2])], io.StringIO())
    assert steps == ["average", "generate"]
    assert (meter.text(), display.share) == ("3 of 10 sentences", 0.3)


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.6, "10 s"), (61, "1 min"), (7500, "2 h 05 min"), (3599, "1 h 00 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


UPDATES = [(second, inner(second)) for second in range(1, 101)]  # one a second


def test_a_line_is_printed_now_and_then():
    stream = io.StringIO()
    shown(meter_of(max_update=100), UPDATES, stream)
    first, *lines = stream.getvalue().splitlines()
    assert first.endswith("  toy: train")
    assert 4 <= len(lines) <= 7  # at most one each 15 s
    for line in lines:
        assert " of 100 updates, " in line and "left of this stage" in line
    assert "\r" not in stream.getvalue()


def test_on_a_terminal_a_bar_is_drawn_and_one_line_stays(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    display = shown(meter_of(max_update=100), UPDATES[:50], stream)
    display.close()
    assert "50 of 100 updates, 50 s left of this stage" in stream.getvalue()
    assert stream.getvalue().count("toy: train, 50 s\n") == 1


def test_a_stage_without_a_count_has_no_share():
    display = shown(Meter(), [(1, "x")], io.StringIO())
    assert (display.share, display.left) == (None, None)


def test_a_terminal_shows_a_line_for_each_running_run_of_a_grid():
    specs = [SimpleNamespace(evaluated_label=norm, seed=1) for norm in ("none", "dyt", "adanorm")]
    states = [Status(WAITING), Status(RUNNING, "train", share=0.4, left=720), Status(RUNNING)]
    assert running_lines(specs, states) == [
        "dyt, seed 1      running: train 40 %, 12 min left",
        "adanorm, seed 1  running: ",
    ]
    assert running_lines(specs, [Status(WAITING)] * 3) == []


def test_a_file_gets_a_line_for_each_running_run_from_time_to_time(monkeypatch):
    written = threading.Event()

    class File(io.StringIO):
        def write(self, text):
            if text.startswith("none, seed 1  running: train 40 %"):
                written.set()
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", File())
    monkeypatch.setattr(grid, "POLL_SECONDS", 0)
    monkeypatch.setattr(grid, "LINE_SECONDS", 0)
    monkeypatch.setattr(grid, "state_of", lambda spec: Status(RUNNING, "train", share=0.4))
    spec = SimpleNamespace(evaluated_label="none", seed=1)
    with grid.show_progress([spec], jobs=1, left=[]):
        assert written.wait(timeout=60)


def test_a_reader_that_leaves_does_not_end_the_progress_in_a_traceback(monkeypatch):
    written, failures = threading.Event(), []

    class Gone(io.StringIO):
        def write(self, text):
            written.set()
            raise BrokenPipeError

    monkeypatch.setattr(threading, "excepthook", failures.append)
    monkeypatch.setattr(sys, "stdout", Gone())
    monkeypatch.setattr(grid, "POLL_SECONDS", 0)
    monkeypatch.setattr(grid, "state_of", lambda spec: Status(WAITING))
    with grid.show_progress([None], jobs=1, left=[]):
        assert written.wait(timeout=60)
    assert failures == []
