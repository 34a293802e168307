"""Runs the stages of a run: those that are done are skipped, what was begun goes on.

The process that supervises imports neither torch nor fairseq. The training is one process, and
everything after it another: the checkpoints are averaged, evaluated and scored there.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from itertools import dropwhile
from pathlib import Path

from norm_plugin.commands.command_line import CommandError, read_lines
from norm_plugin.experiments import processes
from norm_plugin.experiments.console import Console
from norm_plugin.experiments.failures import (
    RunFailedError,
    explain,
    forget_failure,
    record_failure,
)
from norm_plugin.experiments.locking import only_one
from norm_plugin.experiments.progress import LinesMeter, Meter, TrainingMeter, usual_seconds
from norm_plugin.experiments.spec import RunSpec, changed_sources, command_root
from norm_plugin.experiments.stages import (
    DATA_STAGES,
    PLUGIN,
    Stage,
    data_command,
    data_key,
    has_content,
    run_stages,
)
from norm_plugin.experiments.stamps import Stamps, read_stamp
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


def is_finished(spec: RunSpec) -> bool:
    """Whether every stage was done with these settings and this data."""
    stamps = Stamps(spec.stages)
    return all(
        stamps.key_of(stage.name) == stage.key and has_content(stage.product)
        for stage in run_stages(spec)
    )


def diverged(spec: RunSpec) -> str | None:
    """Why the training diverged with these settings and this data; None where it did not."""
    train = run_stages(spec)[0]
    return Stamps(spec.stages).diverged(train.name, train.key)


def is_prepared(spec: RunSpec) -> bool:
    """Whether the data was prepared by the command of this run, and is there."""
    stamp = read_stamp(spec.data.with_name(f"{spec.data.name}.prepared"))
    return (spec.data / "bin").is_dir() and stamp == data_key(spec)  # bin/ is made whole


def execute(
    spec: RunSpec, console: Console, environment: Mapping[str, str], retry: bool = False
) -> None:
    """Run the stages of a run that are not done.

    Args:
        environment: of the commands.
        retry: train again where the same training has diverged before.

    Raises:
        CommandError: the run is going on elsewhere, a folder cannot be written, or its checkpoints
            are of other settings or data.
        RunFailedError: a stage failed.
    """
    processes.require_setpriv()
    make_folder(spec.stages, "--work")
    make_folder(spec.result.parent, "--results")
    with only_one(spec.folder, "the same run") as lock:
        remove_leftovers(spec)
        execution = Execution(spec, console, dict(environment), lock, retry)
        try:
            execution.run()
        except (CommandError, OSError) as error:
            if not spec.folder.is_dir():
                raise CommandError(
                    f"{spec.folder} was removed while its run went on; start the run again"
                ) from error
            if isinstance(error, CommandError):
                execution.record(error)
            raise
        forget_failure(spec)


class Execution:
    """One execution of a run; holds the lock ``lock`` of its folder."""

    def __init__(
        self, spec: RunSpec, console: Console, environment: dict[str, str], lock: int, retry: bool
    ) -> None:
        self.spec, self.console = spec, console
        self.environment, self.lock, self.retry = environment, lock, retry
        self.stamps = Stamps(spec.stages)
        self.started = self.trained = time.monotonic()
        self.status_written = float("-inf")
        self.text = read_status(spec.folder).text  # how far the run has come

    def run(self) -> None:
        """All stages, in order."""
        self.prepare()
        stages = run_stages(self.spec)
        train = stages[0]
        # A stage that is made again makes all after it again.
        missing = list(dropwhile(self.is_done, stages))
        if missing:
            if missing[0] is train:
                self.refuse(train)
                self.stamps.write("train.sources", json.dumps(self.spec.sources))
            for stage in missing:
                self.stamps.begin(stage.name, stage.key, stage.later)
            if missing[0] is train:
                self.train(train)
            self.finish(missing)
        self.write(Status(DONE, stages[-1].name, 1.0, 0.0))
        for line in score_lines(self.spec):
            self.console.say(line)
        self.console.say(f"result: {self.spec.result}")

    def prepare(self) -> None:
        """Raw text to binarized data; several runs share it, so the commands lock it themselves."""
        if is_prepared(self.spec):
            return
        for name in DATA_STAGES:
            self.begin(name, Meter())
            begin = time.monotonic()
            self.command(name, data_command(self.spec, name), Meter())
            self.console.end(name, time.monotonic() - begin)
        stamp = Stamps(self.spec.data.parent)
        stamp.write(f"{self.spec.data.name}.prepared", data_key(self.spec))

    def is_done(self, stage: Stage) -> bool:
        """Whether a stage was finished with the same words and inputs, and its product is there."""
        if self.stamps.key_of(stage.name) != stage.key:
            return False
        done = f"{self.spec.name}: {stage.name} was done before"
        if has_content(stage.product):
            self.console.say(done)
            return True
        self.console.say(f"{done}, but {stage.product} is gone")
        return False

    def refuse(self, stage: Stage) -> None:
        """A training takes up the checkpoints that it finds, so they must be its own."""
        begun = self.stamps.begun("train")
        if begun is not None and begun != stage.key:
            before, now = self.stamps.sources("train"), self.spec.sources
            changed = [] if before is None else changed_sources(before, now)
            what = f"another version of {', '.join(changed)}" if changed else OTHER
            raise CommandError(
                f"{self.spec.checkpoints} is of {what}; remove {self.spec.folder}, or choose "
                "another --work"
            )
        why = self.stamps.diverged("train", stage.key)
        if why is not None and not self.retry:
            raise RunFailedError("train", why, self.spec.log_of("train"), state=DIVERGED)

    def train(self, stage: Stage) -> None:
        """Train; the checkpoints are looked at in the process that averages them."""
        if self.spec.checkpoints.is_dir() and any(self.spec.checkpoints.iterdir()):
            repair = (*processes.PYTHON, *PLUGIN, "repair", str(self.spec.checkpoints))
            self.command("train", repair, Meter())
        meter = TrainingMeter(self.spec.training)
        self.trained = time.monotonic()
        self.begin("train", meter)
        launch = ("srun", "--kill-on-bad-exit=1") if self.spec.srun else ()
        memory = self.command("train", (*launch, *processes.PYTHON, *stage.command), meter)
        if memory and not self.spec.srun:  # of srun, it says nothing of what that starts
            self.stamps.measured("train", memory)
        if not has_content(stage.product):
            hint = "; does torch see the GPUs in srun?" if self.spec.srun else ""
            log = self.spec.log_of("train")
            reason = f"it ended without {stage.product}{hint}"
            raise RunFailedError("train", reason, log, processes.last_lines(log))

    def finish(self, stages: Sequence[Stage]) -> None:
        """Everything after the training in one process, and the check of the training first."""
        steps = [self.step(stage) for stage in stages]
        current, begin = stages[0], time.monotonic()
        meter = Meter()

        def read(line: str) -> None:
            nonlocal current, begin, meter
            word, _, name = line.strip().partition(" ")
            if word == "begin":
                current = next(stage for stage in stages if stage.name == name)
                if name != "train":
                    begin, meter = time.monotonic(), self.meter(current)
                    self.begin(name, meter)
            elif word == "end":
                seconds = time.monotonic() - (self.trained if name == "train" else begin)
                self.stamps.finish(name, seconds)
                self.console.end(name, seconds)
            elif word == "item":
                meter.read(line)
                self.progress(name or current.name, meter)

        command = (*processes.PYTHON, *PLUGIN, "stages", json.dumps(steps))
        starts = {stage.name: _size(self.spec.log_of(stage.name)) for stage in stages}
        try:
            processes.run_command(
                command,
                folder=command_root(),
                environment=self.environment,
                log=self.spec.log_of(current.name),
                read=read,
                lock=self.lock,
                copied=False,
            )
        except processes.CommandFailedError as failed:
            log = self.spec.log_of(current.name)
            failed.tail = processes.last_lines(log, starts[current.name])
            raise explain(current.name, failed, log) from failed

    def step(self, stage: Stage) -> dict[str, object]:
        """A stage as the process of :meth:`finish` reads it."""
        log = self.spec.log_of(stage.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        commands = [stage.command] if stage.name != "train" else []
        commands += [stage.check] if stage.check else []
        item = self.spec.item[0] if self.spec.item and stage.output else None
        return {
            "name": stage.name,
            "log": str(log),
            "commands": commands,
            "output": None if stage.output is None else str(stage.output),
            "item": item,
        }

    def command(self, stage: str, command: Sequence[str], meter: Meter) -> int:
        """Run a command to its end; returns its peak memory."""
        log = self.spec.log_of(stage)

        def read(line: str) -> None:
            meter.read(line)
            self.progress(stage, meter)

        try:
            return processes.run_command(
                command,
                folder=command_root(),
                environment=self.environment,
                log=log,
                read=read,
                lock=self.lock,
            )
        except processes.CommandFailedError as failed:
            raise explain(stage, failed, log) from failed

    def begin(self, stage: str, meter: Meter) -> None:
        """Show that a stage begins."""
        self.console.begin(stage)
        self.status_written = float("-inf")
        self.report(stage, meter, None)

    def progress(self, stage: str, meter: Meter) -> None:
        """Show how far a stage is."""
        self.text = meter.text() or self.text
        after = self.usual_after(stage)
        self.console.progress(stage, meter, after)
        self.report(stage, meter, after)

    def report(self, stage: str, meter: Meter, after: float | None) -> None:
        """Write the status, now and then."""
        if time.monotonic() - self.status_written < STATUS_EACH:
            return
        self.status_written = time.monotonic()
        left = meter.left()
        if left is not None and after is not None:
            left += after
        log = str(self.spec.log_of(stage))
        self.write(Status(RUNNING, stage, meter.share(), left, meter.text(), log=log))

    def record(self, error: CommandError) -> None:
        """Store why the run ended; a training that diverged is not begun again."""
        if not isinstance(error, RunFailedError):
            self.write(Status(FAILED, reason=str(error)))
            return
        status = self.failed(error)
        if error.stage not in DATA_STAGES and not is_finished(self.spec):
            record_failure(self.spec, error, status)

    def failed(self, failure: RunFailedError) -> Status:
        """Store the status of a run whose stage failed."""
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
        """Store the status, with the seconds since the start."""
        seconds = time.monotonic() - self.started
        write_status(self.spec.folder, Status(**{**vars(status), "seconds": round(seconds, 1)}))

    def meter(self, stage: Stage) -> Meter:
        """What measures the progress of a stage after the training."""
        usual = self.usual([stage.name])
        if stage.output is not None and self.spec.item is not None:
            return LinesMeter("item", test_sentences(self.spec), self.spec.item[1], usual)
        return Meter(usual)

    def usual_after(self, stage: str) -> float | None:
        """Seconds that the stages after this one usually take."""
        names = [each.name for each in run_stages(self.spec)]
        return self.usual(names[names.index(stage) + 1 :]) if stage in names else None

    def usual(self, names: list[str]) -> float | None:
        """Seconds that stages took together in the runs of the experiment; None if unknown."""
        times = [usual_seconds(self.spec.folder.parent, name) for name in names]
        known = [seconds for seconds in times if seconds is not None]
        return sum(known) if len(known) == len(times) else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def score_lines(spec: RunSpec) -> list[str]:
    """A line for each score of a finished run, with its label and signature."""
    result = json.loads(spec.result.read_text(encoding="utf-8"))
    lines = []
    for score in result["scores"].values():
        signature = f" ({score['signature']})" if "signature" in score else ""
        number = f"{score['score']:.{spec.digits}f}"
        lines.append(f"  {number:>7}  {score['label']}{signature}")
        lines += [f"  note     {score['note']}"] if "note" in score else []
    return lines


def test_sentences(spec: RunSpec) -> int:
    """The number of sentences of the test set; 0 where it is not known."""
    texts = [path for path in spec.data.glob("tok/test.*") if path.is_file()]
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


def remove_leftovers(spec: RunSpec) -> None:
    """Remove what a killed execution of the same run left half-written."""
    for path in (
        *spec.folder.glob("*.tmp"),
        *spec.stages.glob("*.tmp"),
        *spec.result.parent.glob(f"{spec.result.stem}.*.tmp"),  # what is kept beside it, too
    ):
        path.unlink()


def print_commands(spec: RunSpec) -> None:
    """The commands of the stages that are not done, ready to be pasted into a shell."""
    print(shlex.join(["cd", str(command_root())]))
    print(shlex.join(["mkdir", "-p", str(spec.folder)]))
    if not is_prepared(spec):
        for name in DATA_STAGES:
            print(f"# {spec.name}: {name}\n{shlex.join(data_command(spec, name))}")
    stamps = Stamps(spec.stages)
    launch = ("srun", "--kill-on-bad-exit=1") if spec.srun else ()
    for stage in run_stages(spec):
        if stamps.key_of(stage.name) == stage.key and has_content(stage.product):
            print(f"# {spec.name}: {stage.name} was done before")
            continue
        print(f"# {spec.name}: {stage.name}")
        end = "" if stage.output is None else f" >{shlex.quote(str(stage.output))}"
        before = launch if stage.name == "train" else ()
        print(f"{shlex.join([*before, *processes.PYTHON, *stage.command])}{end}")
