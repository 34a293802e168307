"""scripts/progress.py: what is left of a training, from the lines of fairseq."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/progress.py"
spec = importlib.util.spec_from_file_location("progress", SCRIPT)
progress = importlib.util.module_from_spec(spec)
spec.loader.exec_module(progress)

HEAD = "2026-01-01 00:00:00 | INFO | "


def inner(updates, epoch=1, an_epoch=100):
    position = f"epoch {epoch:03d}:     {updates} / {an_epoch}"
    return f"{HEAD}train_inner | {position} loss=9, num_updates={updates}, lr=1"


def epoch_end(epoch, updates):
    return f"{HEAD}train | epoch {epoch:03d} | loss 9 | num_updates {updates} | lr 1"


def estimates(flags, seen, after=None):
    """The estimates for lines, each read at its second; ``seen`` is [(second, line)]."""
    now = [0.0]
    training = progress.Training(flags, after, lambda: now[0])
    found = []
    for now[0], line in seen:
        found.append(training.read(line))
    return found


def test_the_rate_gives_the_time_that_is_left():
    seen = [(0, inner(10)), (10, inner(20)), (30, inner(40))]
    first, second, third = estimates(["--max-update", "100"], seen, after=60)
    assert first is None  # one sight is no rate
    assert second == "progress: 20 of 100 updates; 2 min left of the whole script"  # 80 s + 60 s
    assert third == "progress: 40 of 100 updates; 2 min left of the whole script"


def test_stages_that_nobody_has_measured_are_named():
    _, line = estimates(["--max-update", "100"], [(0, inner(10)), (10, inner(20))])
    assert "; 1 min left of the training, then average, generate and score, not measured" in line


def test_a_resumed_run_counts_its_own_updates_only():
    seen = [(0, inner(5000)), (100, inner(5100))]
    _, line = estimates(["--max-update", "6100"], seen, after=0)
    assert "17 min left" in line  # 1,000 updates at one a second


@pytest.mark.parametrize(
    "seen",
    [
        [(0, inner(50, an_epoch=100)), (50, inner(100, an_epoch=100))],
        [(0, epoch_end(1, 100)), (100, epoch_end(2, 200))],  # all that a terminal's bar leaves
    ],
)
def test_epochs_are_counted_in_updates(seen):
    *_, line = estimates(["--max-epoch", "3"], seen, after=0)
    assert "of 300 updates; " in line


def test_the_earlier_end_counts_and_the_last_flag_wins():
    flags = ["--max-epoch", "9", "--max-update", "500", "--max-epoch", "2"]
    _, line = estimates(flags, [(0, inner(10)), (10, inner(20))], after=0)
    assert "20 of 200 updates" in line


def test_early_stopping_is_an_upper_bound():
    flags = ["--max-update", "100", "--patience", "5"]
    assert "at most" in estimates(flags, [(0, inner(10)), (10, inner(20))])[1]


def test_no_planned_end_no_estimate():
    assert estimates(["--patience", "5"], [(0, inner(10)), (10, inner(20))]) == [None, None]


def test_estimates_are_rare():
    seen = [(second, inner(second)) for second in range(1, 1001)]
    given = [line for line in estimates(["--max-update", "1000"], seen) if line]
    assert 40 <= len(given) <= 50


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.6, "10 s"), (61, "1 min"), (7500, "2 h 05 min"), (3599, "1 h 00 min")]
)
def test_durations(seconds, text):
    assert progress.duration(seconds) == text


def test_later_stages_take_as_long_as_in_earlier_runs(tmp_path):
    assert progress.seconds_after(tmp_path) is None
    for run, seconds in (("a", 10), ("b", 20)):
        for stage in ("average", "generate", "score"):
            file = tmp_path / run / "stages" / f"{stage}.seconds"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{seconds}\n")
    assert progress.seconds_after(tmp_path) == 45
    (tmp_path / "a/stages/score.seconds").unlink()
    (tmp_path / "b/stages/score.seconds").unlink()
    assert progress.seconds_after(tmp_path) is None


def test_lines_pass_and_the_settings_do_not(tmp_path):
    settings = "{'_name': None, 'common': {'_name': None}}"
    lines = ["first\n", f"| INFO | fairseq_cli.train | {settings}\n", inner(10) + "\n", "last\n"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--runs", str(tmp_path), "--", "--max-update", "20"],
        input="".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "".join([lines[0], *lines[2:]])
