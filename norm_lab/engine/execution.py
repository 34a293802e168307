"""Run the stages of a run: skip finished ones, and resume a training.

The process that supervises imports neither torch nor fairseq. It starts one process for the
training, and another one that averages the checkpoints, evaluates and scores.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace

from norm_lab.config.spec import RUN_FILE, RunSpec, changed_sources
from norm_lab.engine.failure import RunFailedError, explain, write_failure
from norm_lab.engine.process import CommandFailedError, require_setpriv, run_process
from norm_lab.engine.progress import Meter, ProgressDisplay, StepMeter, TrainingMeter
from norm_lab.engine.stages import (
    PLUGIN,
    PREPARE,
    Stage,
    data_command,
    data_key,
    has_content,
    on_cpu,
    run_stages,
)
from norm_lab.engine.state import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    Record,
    Status,
    hold_lock,
    is_done,
    is_finished,
    is_prepared,
    prepared_file,
    read_status,
    write_status,
)
from norm_lab.metrics import find_metric, score_lines
from norm_lab.paths import PYTHON, ROOT
from norm_lab.run.code import code_digest
from norm_lab.run.flags import check_precision_on_cpu, training_flags
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import make_folder, read_json, write_json, write_text

STATUS_INTERVAL = 5.0  # seconds between two writes of the status
OTHER = "other settings or data"


def execute(spec: RunSpec, retry: bool = False) -> None:
    """Run the stages of a run that are not finished.

    Args:
        retry: repeat a training that has diverged before.

    Raises:
        CommandError: another process executes the run, a folder cannot be written, or its
            checkpoints are of other settings or data.
        RunFailedError: a stage failed.
    """
    require_setpriv()
    make_folder(spec.folder, "--work")
    make_folder(spec.result.parent, "--results")
    display = ProgressDisplay(spec.name)
    with hold_lock(spec.folder) as lock:
        of_result = spec.result.parent.glob(f"{spec.result.stem}.*.tmp")
        for path in (*spec.folder.glob("*.tmp"), *of_result):  # of a killed execution of this run
            path.unlink()
        execution = Execution(spec, display, lock, retry)
        try:
            execution.run()
        except CommandError as error:
            execution.record(error)
            raise
        finally:
            display.close()


def write_run(spec: RunSpec) -> None:
    """Write ``run.json`` in the folder of a run, unless that is of a run with other settings.

    Raises:
        CommandError: the folder cannot be written, another process executes the run, or its
            checkpoints are of other settings.
    """
    make_folder(spec.folder, "--work")
    with hold_lock(spec.folder):
        status = read_status(spec.folder)
        other = find_other_training(spec, status)
        if other is not None:
            write_status(spec.folder, replace(status, state=FAILED, stage="", reason=str(other)))
            raise other
        write_json(spec.folder / RUN_FILE, spec.to_json())


def find_other_training(spec: RunSpec, status: Status) -> CommandError | None:
    """Return the error of a run whose folder has the checkpoints of another training, or None."""
    # the status may be lost, or damaged by a power cut
    if "train" not in status.stages and not any(spec.checkpoints.glob("*.pt")):
        return None
    before = RunSpec.read(spec.folder)
    changed = changed_sources(before.sources, spec.sources)
    if changed:
        return error_of_other_training(spec, f"another version of {', '.join(changed)}")
    same = training_flags(before.settings) == training_flags(spec.settings)
    return None if same else error_of_other_training(spec, OTHER)


def error_of_other_training(spec: RunSpec, of: str) -> CommandError:
    """Return the error of a run whose folder has the checkpoints of another training."""
    return CommandError(
        f"{spec.checkpoints} is of {of}; remove {spec.folder}, or choose another --work"
    )


def check_direction(spec: RunSpec) -> None:
    """Raise CommandError if a corpus was not prepared for the direction of the training.

    fairseq would train in that direction, and translate the test set in the one of the files.
    """
    path = spec.data / "manifest.json"
    prepared = read_json(path) if path.is_file() else {}
    for side in ("source", "target"):
        trained = spec.settings["task"].get(f"{side}_lang")
        if trained and prepared.get(side, trained) != trained:
            raise CommandError(
                f"task.{side}_lang is {trained}, but {path} has the {side} {prepared[side]}: "
                "change the languages of the experiment or of its corpus, and remove "
                f"{spec.data} to prepare it again"
            )


class Execution:
    """One execution of a run; ``lock`` is the file descriptor of the lock of its folder."""

    def __init__(self, spec: RunSpec, display: ProgressDisplay, lock: int, retry: bool) -> None:
        self.spec, self.display, self.lock, self.retry = spec, display, lock, retry
        status = read_status(spec.folder)
        self.records = dict(status.stages)
        self.started = time.monotonic() - status.seconds
        self.status_written = float("-inf")
        self.step = ""  # what is running: a stage, or a part of the last one
        self.text = status.text  # the progress of the run

    def run(self) -> None:
        """Run the stages that are not finished, in order."""
        if not is_prepared(self.spec):  # several runs share the data; its command has its own lock
            self.command(PREPARE, data_command(self.spec), Meter())
            write_text(prepared_file(self.spec), f"{data_key(self.spec)}\n")
        check_direction(self.spec)
        train, finish = run_stages(self.spec)  # their keys depend on the data
        if not self.is_done(train):
            self.train(train)
        if not self.is_done(finish):
            self.finish(finish)
        self.write(Status(DONE, finish.name, 1.0, 0.0))
        scores = read_json(self.spec.result)["scores"]
        for line in score_lines(scores, find_metric(self.spec.metric).digits):
            self.display.say(line)
        self.display.say(f"result: {self.spec.result}")

    def is_done(self, stage: Stage) -> bool:
        """Return whether a stage is finished, and say so."""
        done = is_done(stage, self.records)
        if done:
            self.display.say(f"{self.spec.name}: {stage.name} was done before")
        return done

    def train(self, stage: Stage) -> None:
        """Train, from the last checkpoint if there is one.

        Raises:
            CommandError: the checkpoints are of other settings or data, or of another device.
            RunFailedError: the training failed, or has diverged before.
        """
        device = "cpu" if on_cpu(self.spec) else "gpu"
        if device == "cpu":
            check_precision_on_cpu(self.spec.settings["common"])
        new = Record(stage.key, device=device, code=code_digest())
        begun = self.records.get("train") or new
        log = self.spec.log_of("train")
        if begun.key != stage.key:
            raise error_of_other_training(self.spec, OTHER)
        if begun.device != device:
            of = f"a training on the {begun.device}, not the {device}"
            raise error_of_other_training(self.spec, of)
        if begun.diverged and not self.retry:
            raise RunFailedError("train", begun.diverged, log, state=DIVERGED)
        self.records = {"train": replace(begun, done=False, diverged="")}
        if self.spec.checkpoints.is_dir() and any(self.spec.checkpoints.iterdir()):
            repair = (*PYTHON, *PLUGIN, "repair", str(self.spec.checkpoints))
            self.command("train", repair, Meter())
        memory = self.command("train", stage.command, TrainingMeter(self.spec.settings))
        if self.spec.srun:
            memory = 0  # it is that of srun itself
        if not has_content(stage.product):
            hint = "; does torch see the GPUs in srun?" if self.spec.srun else ""
            raise RunFailedError("train", f"it ended without {stage.product}{hint}", log)
        most = max(memory, begun.memory)
        self.records["train"] = replace(self.records["train"], done=True, memory=most)

    def finish(self, stage: Stage) -> None:
        """Average, evaluate and score, in one process; its lines name the step."""
        self.records[stage.name] = Record(stage.key)
        meter = StepMeter(self.begin)
        self.write(Status(RUNNING, stage.name))  # with the peak memory, which the result has
        self.command(stage.name, stage.command, meter)
        self.records[stage.name] = Record(stage.key, done=True)

    def command(self, stage: str, command: Sequence[str], meter: Meter) -> int:
        """Run a command of a stage with the lock of this run; return its peak memory."""
        log = self.spec.log_of(stage)
        # otherwise Weights & Biases names a run after its checkpoint folder and writes to the cwd
        wandb = {"WANDB_NAME": self.spec.name, "WANDB_DIR": str(self.spec.folder)}
        self.begin(stage)

        def read(line: str) -> None:
            meter.read(line)
            self.text = meter.text() or self.text
            self.display.update(meter)
            if time.monotonic() - self.status_written > STATUS_INTERVAL:
                self.report(meter)

        try:
            return run_process(
                command,
                folder=ROOT,
                environment={**wandb, **os.environ},
                log=log,
                read=read,
                lock=self.lock,
            )
        except CommandFailedError as failed:
            raise explain(self.step, failed, log) from failed

    def begin(self, step: str) -> None:
        """Show that a stage, or a step of the last one, begins."""
        if step != self.step:
            self.step = step
            self.display.begin(step)
        self.report(Meter())

    def report(self, meter: Meter) -> None:
        """Write the status of the current step."""
        self.status_written = time.monotonic()
        shown = self.display
        self.write(Status(RUNNING, self.step, shown.share, shown.left, meter.text()))

    def record(self, error: CommandError) -> None:
        """Record why the run ended; a training that diverged is not started again."""
        if not isinstance(error, RunFailedError):
            self.write(Status(FAILED, reason=str(error)))
            return
        if error.state == DIVERGED:
            self.records["train"] = replace(self.records["train"], diverged=error.reason)
        log = str(error.log)
        status = Status(error.state, error.stage, text=self.text, reason=error.reason, log=log)
        self.write(status)
        if error.stage != PREPARE and not is_finished(self.spec):
            write_failure(self.spec, status)

    def write(self, status: Status) -> None:
        """Write the status, with the seconds so far and the records of the stages."""
        seconds = round(time.monotonic() - self.started, 1)
        write_status(self.spec.folder, replace(status, seconds=seconds, stages=self.records))


def print_commands(spec: RunSpec) -> None:
    """Print the commands of the stages that are not finished, for a shell."""
    print(shlex.join(["cd", str(ROOT)]))
    print(shlex.join(["mkdir", "-p", str(spec.folder)]))
    if not is_prepared(spec):
        print(f"# {spec.name}: {PREPARE}\n{shlex.join(data_command(spec))}")
    text = shlex.quote(json.dumps(spec.to_json()))
    print(f"echo {text} >{shlex.quote(str(spec.folder / RUN_FILE))}")
    records = read_status(spec.folder).stages
    for stage in run_stages(spec):
        if is_done(stage, records):
            print(f"# {spec.name}: {stage.name} was done before")
            continue
        print(f"# {spec.name}: {stage.name}\n{shlex.join(stage.command)}")
