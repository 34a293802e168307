"""Run the stages of a run: skip finished ones, and resume a training.

The process that supervises imports neither torch nor fairseq. It starts one process for the
training, and another one that averages the checkpoints, evaluates and scores.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

from norm_lab.config.spec import RUN_FILE, RunSpec, changed_sources
from norm_lab.engine.failure import RunFailedError, explain, write_failure
from norm_lab.engine.process import CommandFailedError, last_lines, require_setpriv, run_process
from norm_lab.engine.progress import LinesMeter, Meter, ProgressDisplay, TrainingMeter
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
    usual_seconds,
    write_status,
)
from norm_lab.metrics import find_metric, score_lines
from norm_lab.paths import PYTHON, ROOT
from norm_lab.run.flags import check_precision_on_cpu, training_flags
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_lines, write_text

STATUS_INTERVAL = 5.0  # seconds between two writes of the status
OTHER = "other settings or data"
SRUN = ("srun", "--kill-on-bad-exit=1")


def execute(
    spec: RunSpec,
    environment: Mapping[str, str],
    retry: bool = False,
    display: ProgressDisplay | None = None,
) -> None:
    """Run the stages of a run that are not finished.

    Args:
        environment: the environment of the commands.
        retry: repeat a training that has diverged before.

    Raises:
        CommandError: another process executes the run, a folder cannot be written, or its
            checkpoints are of other settings or data.
        RunFailedError: a stage failed.
    """
    require_setpriv()
    make_folder(spec.folder, "--work")
    make_folder(spec.result.parent, "--results")
    display = display or ProgressDisplay(spec.name)
    with hold_lock(spec.folder, "the same run") as lock:
        remove_leftovers(spec)
        execution = Execution(spec, display, dict(environment), lock, retry)
        try:
            execution.run()
        except (CommandError, OSError) as error:
            if not spec.folder.is_dir():
                raise CommandError(
                    f"{spec.folder} was removed during its run; start the run again"
                ) from error
            if isinstance(error, CommandError):
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
    with hold_lock(spec.folder, "the same run"):
        status = read_status(spec.folder)
        other = _other_training(spec, status)
        if other is not None:
            write_status(spec.folder, replace(status, state=FAILED, stage="", reason=str(other)))
            raise other
        text = json.dumps(spec.to_json(), indent=2, ensure_ascii=False)
        write_text(spec.folder / RUN_FILE, f"{text}\n")


def _other_training(spec: RunSpec, status: Status) -> CommandError | None:
    """Return the error of a run whose folder has the checkpoints of another training, or None."""
    if (spec.folder / "stages").is_dir():
        return of_other_training(spec, "an earlier version of norm_lab")
    if "train" not in status.stages:
        return None
    before = RunSpec.read(spec.folder)
    changed = changed_sources(before.sources, spec.sources)
    if changed:
        return of_other_training(spec, f"another version of {', '.join(changed)}")
    same = training_flags(before.settings) == training_flags(spec.settings)
    return None if same else of_other_training(spec, OTHER)


def of_other_training(spec: RunSpec, of: str) -> CommandError:
    """Return the error of a run whose folder has the checkpoints of another training."""
    return CommandError(
        f"{spec.checkpoints} is of {of}; remove {spec.folder}, or choose another --work"
    )


class Execution:
    """One execution of a run; ``lock`` is the file descriptor of the lock of its folder."""

    def __init__(
        self,
        spec: RunSpec,
        display: ProgressDisplay,
        environment: dict[str, str],
        lock: int,
        retry: bool,
    ) -> None:
        self.spec, self.display = spec, display
        self.environment, self.lock, self.retry = environment, lock, retry
        status = read_status(spec.folder)
        self.records = dict(status.stages)
        self.stages = run_stages(spec)
        self.started = time.monotonic()
        self.status_written = float("-inf")
        self.after: float | None = None  # the usual duration of the later stages, in seconds
        self.text = status.text  # the progress of the run

    def run(self) -> None:
        """Run all stages in order; after one that is not finished, all later ones run again."""
        self.prepare()
        self.stages = run_stages(self.spec)  # their keys depend on the data
        train, device = self.stages[0], "cpu" if on_cpu(self.spec) else "gpu"
        missing = list(dropwhile(self.is_done, self.stages))
        if train in missing:
            self.check_begun(train, device)
        for stage in missing:
            begun = self.records.get(stage.name)
            memory = begun.memory if begun is not None and begun.key == stage.key else 0
            for name in (stage.name, *stage.later):
                self.records.pop(name, None)
            self.records[stage.name] = Record(stage.key, memory=memory)
        if train in missing:
            self.change("train", device=device)
        begin = time.monotonic()
        if train in missing:
            self.train(train)
        if missing:
            self.finish(missing, begin)
        self.write(Status(DONE, self.stages[-1].name, 1.0, 0.0))
        result = json.loads(self.spec.result.read_text(encoding="utf-8"))
        for line in score_lines(result["scores"], find_metric(self.spec.metric).digits):
            self.display.say(line)
        self.display.say(f"result: {self.spec.result}")

    def prepare(self) -> None:
        """Prepare the data. Several runs share it, so the command takes its own lock."""
        if is_prepared(self.spec):
            return
        begin = time.monotonic()
        self.begin(PREPARE, Meter())
        self.command(PREPARE, data_command(self.spec), Meter())
        self.display.end(PREPARE, time.monotonic() - begin)
        write_text(prepared_file(self.spec), f"{data_key(self.spec)}\n")

    def change(self, stage: str, **values: Any) -> None:
        """Change the record of a stage; it is written with the next status."""
        self.records[stage] = replace(self.records[stage], **values)

    def is_done(self, stage: Stage) -> bool:
        """Return whether a stage is finished with its command and inputs, and has its product."""
        record = self.records.get(stage.name)
        if record is None or not record.done or record.key != stage.key:
            return False
        has_product = has_content(stage.product)
        but = "" if has_product else f", but {stage.product} is missing"
        self.display.say(f"{self.spec.name}: {stage.name} was done before{but}")
        return has_product

    def check_begun(self, train: Stage, device: str) -> None:
        """Check that the checkpoints to resume from are those of this training.

        Raises:
            CommandError: they are of other settings or data, or another device.
            RunFailedError: the training has diverged.
        """
        if device == "cpu":
            check_precision_on_cpu(self.spec.settings["common"])
        begun = self.records.get("train")
        if begun is None:
            return
        if begun.key != train.key:
            raise of_other_training(self.spec, OTHER)
        if begun.device != device:
            raise of_other_training(
                self.spec, f"a training on the {begun.device}, not the {device}"
            )
        if begun.diverged and not self.retry:
            log = self.spec.log_of("train")
            raise RunFailedError("train", begun.diverged, log, state=DIVERGED)

    def train(self, stage: Stage) -> None:
        """Train; the process that averages the checkpoints checks them later."""
        meter = TrainingMeter(self.spec.settings)
        self.begin("train", meter)
        if self.spec.checkpoints.is_dir() and any(self.spec.checkpoints.iterdir()):
            repair = (*PYTHON, *PLUGIN, "repair", str(self.spec.checkpoints))
            self.command("train", repair, Meter())
        launch = SRUN if self.spec.srun else ()
        memory = self.command("train", (*launch, *PYTHON, *stage.command), meter)
        if memory and not self.spec.srun:  # with srun it would be the memory of srun itself
            self.change("train", memory=max(memory, self.records["train"].memory))
        if not has_content(stage.product):
            hint = "; does torch see the GPUs in srun?" if self.spec.srun else ""
            log = self.spec.log_of("train")
            reason = f"it ended without {stage.product}{hint}"
            raise RunFailedError("train", reason, log, last_lines(log))

    def finish(self, stages: Sequence[Stage], begin: float) -> None:
        """Check the training and run all later stages, in one process.

        Args:
            begin: when the first of ``stages`` began.
        """
        names = {stage.name: stage for stage in stages}
        current, meter = stages[0], Meter()

        def read(line: str) -> None:
            nonlocal current, begin, meter
            event, _, name = line.strip().partition(" ")
            if event == "begin":
                current = names[name]
                if name != "train":
                    begin, meter = time.monotonic(), self.meter(current)
                    self.begin(name, meter)
            elif event == "end":
                seconds = time.monotonic() - begin
                self.change(name, done=True, seconds=round(seconds, 1))
                self.write(Status(RUNNING, name))
                self.display.end(name, seconds)
            elif event == "item":
                meter.read(line)
                self.progress(current.name, meter)

        starts = {stage.name: _size(self.spec.log_of(stage.name)) for stage in stages}
        self.spec.log_of("train").parent.mkdir(exist_ok=True)
        self.write(Status(RUNNING, current.name))  # with the peak memory, which the result has
        command = (*PYTHON, *PLUGIN, "finish", str(self.spec.folder), *names)
        try:
            self.start(command, self.spec.log_of(current.name), read, tee=False)
        except CommandFailedError as failed:
            log = self.spec.log_of(current.name)
            failed.tail = last_lines(log, starts[current.name])
            raise explain(current.name, failed, log) from failed

    def command(self, stage: str, command: Sequence[str], meter: Meter) -> int:
        """Run a command to its end; return its peak memory."""
        log = self.spec.log_of(stage)

        def read(line: str) -> None:
            meter.read(line)
            self.progress(stage, meter)

        try:
            return self.start(command, log, read)
        except CommandFailedError as failed:
            raise explain(stage, failed, log) from failed

    def start(
        self, command: Sequence[str], log: Path, read: Callable[[str], None], tee: bool = True
    ) -> int:
        """Run a command with the environment and the lock of this run."""
        # otherwise Weights & Biases names a run after its checkpoint folder and writes to the cwd
        wandb = {"WANDB_NAME": self.spec.name, "WANDB_DIR": str(self.spec.folder)}
        return run_process(
            command,
            folder=ROOT,
            environment={**wandb, **self.environment},
            log=log,
            read=read,
            lock=self.lock,
            tee=tee,
        )

    def begin(self, stage: str, meter: Meter) -> None:
        """Show that a stage begins."""
        self.display.begin(stage)
        names = [each.name for each in self.stages]
        later = names[names.index(stage) + 1 :] if stage in names else None
        self.after = None if later is None else usual_seconds(self.spec, later)
        self.report(stage, meter, now=True)

    def progress(self, stage: str, meter: Meter) -> None:
        """Show the progress of a stage."""
        self.text = meter.text() or self.text
        self.display.update(meter, self.after)
        self.report(stage, meter)

    def report(self, stage: str, meter: Meter, now: bool = False) -> None:
        """Write the status, at most every ``STATUS_INTERVAL`` seconds unless ``now``."""
        if not now and time.monotonic() - self.status_written < STATUS_INTERVAL:
            return
        self.status_written = time.monotonic()
        share, left = self.display.share(), self.display.left(self.after)
        log = str(self.spec.log_of(stage))
        self.write(Status(RUNNING, stage, share, left, meter.text(), log=log))

    def record(self, error: CommandError) -> None:
        """Record why the run ended; a training that diverged is not started again."""
        if not isinstance(error, RunFailedError):
            self.write(Status(FAILED, reason=str(error)))
            return
        if error.state == DIVERGED:
            self.change("train", diverged=error.reason)
        log = str(error.log)
        status = Status(error.state, error.stage, text=self.text, reason=error.reason, log=log)
        self.write(status)
        if error.stage != PREPARE and not is_finished(self.spec):
            write_failure(self.spec, status)

    def write(self, status: Status) -> None:
        """Write the status, with the seconds since the start and the records of the stages."""
        seconds = round(time.monotonic() - self.started, 1)
        write_status(self.spec.folder, replace(status, seconds=seconds, stages=self.records))

    def meter(self, stage: Stage) -> Meter:
        """Return the meter of a stage after the training."""
        item = find_metric(self.spec.metric).item
        if stage.output is None or item is None:
            return Meter()
        texts = [path for path in self.spec.data.glob("tok/test.*") if path.is_file()]
        sentences = len(read_lines(texts[0])) if texts else 0
        return LinesMeter("item", sentences, item[1])


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def make_folder(folder: Path, option: str) -> None:
    """Create a writable folder; CommandError names the option that changes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"cannot create {folder}: {error.strerror}; choose another {option}"
        ) from error
    if not os.access(folder, os.W_OK):
        raise CommandError(f"{folder} is not writable; choose another {option}")


def remove_leftovers(spec: RunSpec) -> None:
    """Remove temporary files of a killed execution of the same run."""
    for path in (
        *spec.folder.glob("*.tmp"),
        *spec.result.parent.glob(f"{spec.result.stem}.*.tmp"),
    ):
        path.unlink()


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
        launch = SRUN if spec.srun and stage.name == "train" else ()
        output = "" if stage.output is None else f" >{shlex.quote(str(stage.output))}"
        print(f"# {spec.name}: {stage.name}")
        print(f"{shlex.join([*launch, *PYTHON, *stage.command])}{output}")
