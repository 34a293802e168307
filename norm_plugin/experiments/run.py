"""Executes the plan of a run: stages that are done are skipped, what was begun goes on."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from norm_plugin.commands.command_line import CommandError, DivergedError, read_lines
from norm_plugin.experiments import processes, products
from norm_plugin.experiments.console import Console
from norm_plugin.experiments.done import (
    has_content,
    is_finished,
    manifest_key,
    print_plan,
    user_dir_key,
)
from norm_plugin.experiments.failures import (
    RunFailedError,
    explain,
    forget_failure,
    record_failure,
)
from norm_plugin.experiments.locking import only_one
from norm_plugin.experiments.plan import Plan, make_plan, plan_root
from norm_plugin.experiments.progress import LinesMeter, Meter, TrainingMeter, usual_seconds
from norm_plugin.experiments.results import read_result, score_lines
from norm_plugin.experiments.settings import read_settings
from norm_plugin.experiments.sources import changed_sources
from norm_plugin.experiments.stages import DATA_STAGES, Stage, data_stages, run_stages
from norm_plugin.experiments.stamps import Stamps, next_key
from norm_plugin.experiments.status import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    Status,
    read_status,
    write_status,
)

OTHER = "other settings or data"
STATUS_EACH = 5.0  # seconds between two writings of the status of a stage


def main(args: argparse.Namespace) -> int:
    """The command ``run``."""
    plan = make_plan(read_settings(args))
    if plan.settings.dry:
        print_plan(plan)
    else:
        execute(plan, Console(plan.name), os.environ, args.retry)
    return 0


def execute(
    plan: Plan, console: Console, environment: Mapping[str, str], retry: bool = False
) -> None:
    """Run the stages of ``plan`` that are not done.

    Args:
        environment: of the commands.
        retry: train again where the same training has diverged before.

    Raises:
        CommandError: the run is going on elsewhere, a folder cannot be written, or its checkpoints
            are of other settings or data.
        RunFailedError: a stage failed.
    """
    processes.require_setpriv()
    make_folder(plan.folder / "stages", "--work")
    make_folder(plan.result.parent, "--results")
    with only_one(plan.folder, "the same run") as lock:
        remove_leftovers(plan)
        execution = Execution(plan, console, dict(environment), lock, retry)
        try:
            execution.run()
        except RunFailedError as failure:
            status = execution.failed(failure)
            began = failure.stage not in DATA_STAGES
            if began and not is_finished(plan):
                record_failure(plan, failure, status)
            raise
        except CommandError as refusal:
            execution.write(Status(FAILED, reason=str(refusal)))
            raise
        forget_failure(plan)


class Execution:
    """One execution of a plan; holds the lock ``lock`` of its folder."""

    def __init__(
        self, plan: Plan, console: Console, environment: dict[str, str], lock: int, retry: bool
    ) -> None:
        self.plan, self.console = plan, console
        self.environment, self.lock, self.retry = environment, lock, retry
        self.stamps = Stamps(plan.folder / "stages")
        self.key = user_dir_key(plan)
        self.started = time.monotonic()
        self.status_written = float("-inf")
        self.text = read_status(plan.folder).text  # how far the run has come

    def run(self) -> None:
        """All stages, in order."""
        for stage in data_stages(self.plan):
            self.work(stage, Meter())
        self.key += manifest_key(self.plan)
        stages = run_stages(self.plan)
        for index, stage in enumerate(stages):
            self.key = next_key(self.key, stage.words)
            if not self.is_done(stage):
                self.refuse(stage)
                self.make(stage, self.usual([each.name for each in stages[index + 1 :]]))
        self.write(Status(DONE, stages[-1].name, 1.0, 0.0))
        for line in score_lines(read_result(self.plan.result)):
            self.console.say(line)
        self.console.say(f"result: {self.plan.result}")

    def is_done(self, stage: Stage) -> bool:
        """Whether a stage was finished with the same words and inputs, and its product is there."""
        assert stage.product is not None
        if self.stamps.key_of(stage.name) != self.key:
            return False
        done = f"{self.plan.name}: {stage.name} was done before"
        if has_content(stage.product):
            self.console.say(done)
            return True
        self.console.say(f"{done}, but {stage.product} is gone")
        return False

    def refuse(self, stage: Stage) -> None:
        """A training takes up the checkpoints that it finds, so they must be its own."""
        if stage.name != "train":
            return
        begun = self.stamps.begun("train")
        if begun is not None and begun != self.key:
            before = self.stamps.sources("train")
            changed = [] if before is None else changed_sources(before, self.plan.sources)
            what = f"another version of {', '.join(changed)}" if changed else OTHER
            raise CommandError(
                f"{self.plan.checkpoints} is of {what}; remove {self.plan.folder}, or choose "
                "another --work"
            )
        why = self.stamps.diverged("train", self.key)
        if why is not None and not self.retry:
            raise RunFailedError("train", why, self.log(stage), state=DIVERGED)

    def make(self, stage: Stage, after: float | None) -> None:
        """Run a stage, look at what it made, and stamp it."""
        begin = time.monotonic()
        if stage.name == "train":
            self.stamps.write("train.sources", json.dumps(self.plan.sources))
        self.stamps.begin(stage.name, self.key, stage.later)
        if stage.before:
            self.command(stage, stage.before, Meter())
        self.work(stage, self.meter(stage), after)
        check_product(self.plan, stage, self.log(stage))
        seconds = time.monotonic() - begin
        self.stamps.finish(stage.name, seconds)

    def work(self, stage: Stage, meter: Meter, after: float | None = None) -> None:
        """Run the command of a stage, and show how far it is."""
        begin = time.monotonic()
        self.console.begin(stage.name)
        self.status_written = float("-inf")
        self.command(stage, stage.command, meter, after)
        self.console.end(stage.name, time.monotonic() - begin)

    def command(
        self, stage: Stage, command: tuple[str, ...], meter: Meter, after: float | None = None
    ) -> None:
        log = self.log(stage)

        def read(line: str) -> None:
            meter.read(line)
            self.text = meter.text() or self.text
            self.console.progress(stage.name, meter, after)
            self.report(stage, meter, after, log)

        self.report(stage, meter, after, log)
        try:
            memory = processes.run_command(
                command,
                folder=plan_root(),
                environment=self.environment,
                log=log,
                read=read,
                lock=self.lock,
                output=stage.output if command is stage.command else None,
            )
        except processes.CommandFailedError as failed:
            raise explain(stage.name, failed, log) from failed
        # of srun, it says nothing of what that starts; a stage without a product runs each time
        if memory and command[0] != "srun" and stage.product is not None:
            self.stamps.measured(stage.name, memory)

    def report(self, stage: Stage, meter: Meter, after: float | None, log: Path) -> None:
        """Write the status, now and then."""
        if time.monotonic() - self.status_written < STATUS_EACH:
            return
        self.status_written = time.monotonic()
        left = meter.left()
        if left is not None and after is not None:
            left += after
        self.write(Status(RUNNING, stage.name, meter.share(), left, meter.text(), log=str(log)))

    def failed(self, failure: RunFailedError) -> Status:
        """Store why the run failed; a training that diverged is not begun again."""
        if failure.state == DIVERGED:
            self.stamps.write("train.diverged", f"{self.stamps.begun('train')}\n{failure.reason}")
        status = Status(
            failure.state,
            failure.stage,
            text=self.text,
            reason=failure.reason,
            log=str(failure.log),
        )
        self.write(status)
        return status

    def write(self, status: Status) -> None:
        seconds = time.monotonic() - self.started
        write_status(self.plan.folder, Status(**{**vars(status), "seconds": round(seconds, 1)}))

    def meter(self, stage: Stage) -> Meter:
        """What measures the progress of a stage."""
        usual = self.usual([stage.name])
        if stage.name == "train":
            return TrainingMeter(self.plan.training)
        item = self.plan.metric.item
        if stage.output is not None and item is not None:
            beginning, what = item
            return LinesMeter(beginning, test_sentences(self.plan), what, usual)
        return Meter(usual)

    def usual(self, names: list[str]) -> float | None:
        """Seconds that stages took together in the runs of the experiment; None if unknown."""
        times = [usual_seconds(self.plan.folder.parent, name) for name in names]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None

    def log(self, stage: Stage) -> Path:
        """The file with the full output of a stage."""
        return self.plan.log_of(stage.name)


def check_product(plan: Plan, stage: Stage, log: Path) -> None:
    """Raise RunFailedError where a stage has ended well and not made what it was to."""
    assert stage.product is not None
    if not has_content(stage.product):
        hint = "; does torch see the GPUs in srun?" if stage.command[0] == "srun" else ""
        reason = f"it ended without {stage.product}{hint}"
        raise RunFailedError(stage.name, reason, log, processes.last_lines(log))
    try:
        if stage.name == "train" and plan.averaging:
            kind = {"--last-epochs": "epoch", "--last-updates": "update"}[plan.averaging[0]]
            products.check_training(plan.checkpoints, kind, int(plan.averaging[1]))
        elif stage.name == "train":
            products.check_best(plan.evaluated)
        elif stage.output is not None:
            plan.metric.check_log(stage.output, plan.data)
    except CommandError as error:
        state = DIVERGED if isinstance(error, DivergedError) else FAILED
        raise RunFailedError(stage.name, str(error), log, state=state) from error


def test_sentences(plan: Plan) -> int:
    """The number of sentences of the test set; 0 where it is not known."""
    texts = [path for path in plan.data.glob("tok/test.*") if path.is_file()]
    return len(read_lines(texts[0])) if texts else 0


def make_folder(folder: Path, option: str) -> None:
    """Make a folder to write in; raises CommandError that names the option to change."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"cannot make {folder}: {error.strerror}; choose another {option}"
        ) from error
    if not os.access(folder, os.W_OK):
        raise CommandError(f"{folder} cannot be written; choose another {option}")


def remove_leftovers(plan: Plan) -> None:
    """Remove what a killed execution of the same run left half-written."""
    for path in (
        *plan.folder.glob("*.tmp"),
        *plan.folder.glob("stages/*.tmp"),
        *plan.result.parent.glob(f"{plan.result.stem}.*.tmp"),  # what is kept beside it, too
    ):
        path.unlink()
