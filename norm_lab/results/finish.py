"""What follows the training of a run, in one process that imports torch and fairseq once."""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from norm_lab.config.spec import RunSpec
from norm_lab.engine.stages import evaluation_flags
from norm_lab.metrics import AVERAGE, find_metric
from norm_lab.results.result import collect_result, write_result
from norm_lab.run.flags import averaging_flags
from norm_plugin.io.command_line import Parser, existing
from norm_plugin.io.files import atomic_write, read_lines

INTERVAL = 1.0  # seconds between two lines of a step


def main(argv: Sequence[str]) -> int:
    """Run the command ``finish FOLDER``: average, evaluate and score the training in a folder.

    The folder has ``run.json``, and the result is written where that says. Lines of the form of
    :data:`~norm_lab.engine.progress.STEP_LINE` are printed among all others.
    """
    parser = Parser(
        prog="norm-plugin finish",
        description="Average, evaluate and score the finished training of a run; write its result.",
        example="norm-plugin finish work/runs/toy/layernorm-seed1",
    )
    text = "the folder of the run, with its run.json"
    parser.add_argument("folder", type=existing, metavar="FOLDER", help=text)
    spec = RunSpec.read_in_place(parser.parse_args(argv).folder)
    metric = find_metric(spec.metric)
    if metric.checkpoint == AVERAGE:
        step("average")
        average(spec)
    step(metric.stage)
    evaluation = evaluate(spec)
    step("score")
    write_result(collect_result(spec, evaluation), spec.results)
    return 0


def step(name: str, done: int = 0, total: int = 0, items: str = "") -> None:
    """Print a line on the progress to the stdout of this process."""
    print(f"progress: {name} {done} of {total} {items}", file=sys.__stdout__, flush=True)


def average(spec: RunSpec) -> None:
    """Average the last checkpoints of a run."""
    from norm_plugin.checkpoints import average

    files = ["--inputs", str(spec.checkpoints), "--output", str(spec.evaluated)]
    user_dir = [] if spec.user_dir is None else ["--user-dir", str(spec.user_dir)]
    average.main([*files, *user_dir, *averaging_flags(spec.settings)])


def evaluate(spec: RunSpec) -> Any:
    """Return the evaluation of the test set; what is printed goes to its log."""
    import norm_plugin.models  # fairseq does not import this package as --user-dir

    plugin = spec.user_dir or Path(norm_plugin.__file__).parent
    where = ["--user-dir", str(plugin), "--gen-subset", "test", "--path", str(spec.evaluated)]
    argv = [str(spec.data / "bin"), *where, *evaluation_flags(spec)]
    with atomic_write(spec.evaluation_log) as file:
        stream = CountingStream(file, spec)
        with redirect_stdout(stream):
            evaluation = find_metric(spec.metric).evaluate(argv, spec.evaluation_log)
        stream.flush()
    logging.root.handlers.clear()  # they write to the log, which is complete
    return evaluation


class CountingStream(io.TextIOWrapper):
    """The text of an evaluation, written to a file; counts the items of the metric."""

    def __init__(self, file: Any, spec: RunSpec) -> None:
        super().__init__(file, encoding="utf-8", write_through=True)
        metric = find_metric(spec.metric)
        self.beginning, self.items = metric.item or ("\0", "")
        texts = [path for path in spec.data.glob("tok/test.*") if path.is_file()]
        self.total = len(read_lines(texts[0])) if texts else 0
        self.step, self.done, self.shown = metric.stage, 0, time.monotonic()

    def write(self, text: str) -> int:
        """Write text; print calls this with a whole line, then with the newline."""
        if text.startswith(self.beginning):
            self.done += 1
            if time.monotonic() - self.shown > INTERVAL:
                self.shown = time.monotonic()
                step(self.step, self.done, self.total, self.items)
        return super().write(text)
