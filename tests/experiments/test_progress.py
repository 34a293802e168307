"""How far a stage is, from the lines that it prints, and how it is shown."""

from __future__ import annotations

import io

import pytest

from norm_plugin.experiments.console import Console, progress_line
from norm_plugin.experiments.progress import (
    LinesMeter,
    Meter,
    TrainingMeter,
    duration,
    usual_seconds,
)

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


def training(flags, seen):
    """A meter after lines, each read at its second; ``seen`` is [(second, line)]."""
    clock = Clock()
    meter = TrainingMeter(flags, clock)
    for clock.now, line in seen:
        meter.read(line)
    return meter


def test_the_rate_gives_the_time_that_is_left():
    flags = ["--max-update", "100"]
    assert training(flags, [(0, inner(10))]).left() is None  # one sight is no rate
    meter = training(flags, [(0, inner(10)), (10, inner(20))])
    assert (meter.left(), meter.share()) == (80, 0.2)
    assert meter.text() == "20 of 100 updates"


def test_a_resumed_run_counts_its_own_updates_only():
    meter = training(["--max-update", "6100"], [(0, inner(5000)), (100, inner(5100))])
    assert meter.left() == 1000  # 1,000 updates at one a second


@pytest.mark.parametrize(
    "seen",
    [
        [(0, inner(50, an_epoch=100)), (50, inner(100, an_epoch=100))],
        [(0, epoch_end(1, 100)), (100, epoch_end(2, 200))],  # all that a terminal's bar leaves
        [(0, inner(10)), (1, validation(1, 50))],  # --validate-interval-updates 50
    ],
)
def test_epochs_are_counted_in_updates(seen):
    assert training(["--max-epoch", "3"], seen).planned() == 300


def test_the_earlier_end_counts_and_the_last_flag_wins():
    flags = ["--max-epoch", "9", "--max-update", "500", "--max-epoch", "2"]
    assert training(flags, [(0, inner(10))]).planned() == 200


def test_early_stopping_is_an_upper_bound():
    meter = training(["--max-update", "100", "--patience", "5"], [(0, inner(10))])
    assert meter.text() == "10 of at most 100 updates"


def test_no_planned_end_no_estimate():
    meter = training(["--patience", "5"], [(0, inner(10)), (10, inner(20))])
    assert meter.left() is None and meter.share() is None
    assert meter.text() == "20 updates"


def test_sentences_are_counted():
    clock = Clock()
    meter = LinesMeter("H-", 10, "sentences", usual=30.0, clock=clock)
    assert meter.left() == 30  # as in earlier runs
    for clock.now in (5.0, 6.0, 7.0):
        meter.read("S-1\tx")
        meter.read("H-1\t-0.5\tx")
    assert (meter.share(), meter.left(), meter.text()) == (0.3, 7, "3 of 10 sentences")


def test_other_stages_take_as_long_as_in_earlier_runs(tmp_path):
    assert usual_seconds(tmp_path, "average") is None
    for run, seconds in (("a", 10), ("b", 20)):
        file = tmp_path / run / "stages" / "average.seconds"
        file.parent.mkdir(parents=True)
        file.write_text(f"{seconds}\n")
    clock = Clock()
    meter = Meter(usual_seconds(tmp_path, "average"), clock)
    clock.now = 3.0
    assert (meter.left(), meter.share()) == (12, 0.2)


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.6, "10 s"), (61, "1 min"), (7500, "2 h 05 min"), (3599, "1 h 00 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_line_names_the_time_left_of_the_run_where_it_is_known():
    meter = training(["--max-update", "100"], [(0, inner(25)), (25, inner(50))])
    bar = "[##########          ]  50 %"
    assert progress_line("toy: train", meter, 10.0) == (
        f"toy: train  {bar}  50 of 100 updates, 1 min left of the run"
    )
    assert progress_line("toy: train", meter, None).endswith("50 s left of this stage")
    assert progress_line("toy: fetch", Meter(None), None) == "toy: fetch"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream):
    """What a console writes while 100 updates are made in 100 seconds."""
    clock = Clock()
    meter, console = TrainingMeter(["--max-update", "100"], clock), Console("toy", stream, clock)
    console.begin("train")
    for second in range(1, 101):
        clock.now = float(second)
        meter.read(inner(second))
        console.progress("train", meter, None)
    console.end("train", 100)
    return stream.getvalue()


def test_on_a_terminal_one_line_is_written_anew():
    text = shown(Terminal())
    assert text.count("\n") == 1 and text.count("\r") == 102
    assert text.endswith("toy: train, 2 min\n")


def test_elsewhere_a_line_is_printed_now_and_then():
    lines = shown(io.StringIO()).splitlines()
    assert 5 <= len(lines) <= 8  # at most one each 15 s
    assert lines[0].endswith("  toy: train") and "\r" not in "".join(lines)
