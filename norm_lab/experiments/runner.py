"""Runs the stages of a run; finished stages are skipped, and a training is resumed.

The process that supervises imports neither torch nor fairseq. It starts one process for the
training, and another one that averages the checkpoints, evaluates and scores.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import dropwhile
from pathlib import Path
from typing import Any, TextIO

from norm_lab.experiments.metrics import score_lines
from norm_lab.experiments.spec import (
    PLUGIN,
    PREPARE,
    PYTHON,
    ROOT,
    RunSpec,
    Stage,
    changed_sources,
    data_command,
    data_key,
    has_content,
    run_stages,
)
from norm_lab.experiments.state import (
    DIVERGED,
    DONE,
    FAILED,
    RUNNING,
    LinesMeter,
    Meter,
    Screen,
    Stamps,
    Status,
    TrainingMeter,
    curves_of_log,
    hold_lock,
    is_finished,
    is_prepared,
    read_status,
    usual_seconds,
    utc_date,
    write_status,
)
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.io.files import read_lines, write_text

STATUS_INTERVAL = 5.0  # seconds between two writes of the status
OTHER = "other settings or data"
SRUN = ("srun", "--kill-on-bad-exit=1")

# raised by torch, by fairseq and its loss scaler, and by norm_plugin.models.divergence
NOT_FINITE = re.compile(r"\bFloatingPointError: (?P<reason>.+)")
NAN_LOSS = re.compile(r"\b(?:train|valid)\b.*\bloss (?P<reason>nan|inf)\b", re.I)
SAYS_DIVERGED = re.compile(r"^error: (?P<reason>.*\bdiverged\b.*)")  # a command of this package
ERROR = re.compile(r"^(error: .+|[\w.]*(?:Error|Exception|Interrupt)\b.*)")


class RunFailedError(CommandError):
    """A run ended without a result.

    Attributes:
        state: failed or diverged.
        reason: one line.
        log: the full output of the stage.
        tail: its last lines.
    """

    def __init__(
        self, stage: str, reason: str, log: Path, tail: Sequence[str] = (), state: str = FAILED
    ) -> None:
        super().__init__(f"{stage} {state}: {reason}; full output: {log}")
        self.stage, self.reason, self.log, self.state = stage, reason, log, state
        self.tail = list(tail)


def execute(
    spec: RunSpec, environment: Mapping[str, str], retry: bool = False, screen: Screen | None = None
) -> None:
    """Run the stages of a run that are not finished.

    Args:
        environment: the environment of the commands.
        retry: train again if the same training has diverged before.

    Raises:
        CommandError: another process executes the run, a folder cannot be written, or its
            checkpoints are of other settings or data.
        RunFailedError: a stage failed.
    """
    require_setpriv()
    make_folder(spec.stages, "--work")
    make_folder(spec.result.parent, "--results")
    screen = screen or Screen(spec.name)
    with hold_lock(spec.folder, "the same run") as lock:
        remove_leftovers(spec)
        execution = Execution(spec, screen, dict(environment), lock, retry)
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
            screen.close()
        spec.failure.unlink(missing_ok=True)  # the run has a result now


class Execution:
    """One execution of a run; ``lock`` is the file descriptor of the lock of its folder."""

    def __init__(
        self, spec: RunSpec, screen: Screen, environment: dict[str, str], lock: int, retry: bool
    ) -> None:
        self.spec, self.screen = spec, screen
        self.environment, self.lock, self.retry = environment, lock, retry
        self.stamps = Stamps(spec.stages)
        self.stages = run_stages(spec)
        self.started = time.monotonic()
        self.status_written = float("-inf")
        self.after: float | None = None  # the usual duration of the later stages, in seconds
        self.text = read_status(spec.folder).text  # the progress of the run

    def run(self) -> None:
        """Run all stages in order; after one that is not finished, all later ones run again."""
        self.prepare()
        self.stages = run_stages(self.spec)  # their keys depend on the data
        train = self.stages[0]
        missing = list(dropwhile(self.is_done, self.stages))
        if train in missing:
            self.check_begun(train)
            self.stamps.write("train.sources", json.dumps(self.spec.sources))
        for stage in missing:
            self.stamps.begin(stage.name, stage.key, stage.later)
        begin = time.monotonic()
        if train in missing:
            self.train(train)
        if missing:
            self.finish(missing, begin)
        self.write(Status(DONE, self.stages[-1].name, 1.0, 0.0))
        result = json.loads(self.spec.result.read_text(encoding="utf-8"))
        for line in score_lines(result["scores"], self.spec.digits):
            self.screen.say(line)
        self.screen.say(f"result: {self.spec.result}")

    def prepare(self) -> None:
        """Prepare the data. Several runs share it, so the command takes its own lock."""
        if is_prepared(self.spec):
            return
        begin = time.monotonic()
        self.begin(PREPARE, Meter())
        self.command(PREPARE, data_command(self.spec), Meter())
        self.screen.end(PREPARE, time.monotonic() - begin)
        stamps = Stamps(self.spec.data.parent)
        stamps.write(f"{self.spec.data.name}.prepared", data_key(self.spec))

    def is_done(self, stage: Stage) -> bool:
        """Whether a stage is finished with the same command and inputs, and its product exists."""
        if self.stamps.read(stage.name) != stage.key:
            return False
        has_product = has_content(stage.product)
        but = "" if has_product else f", but {stage.product} is gone"
        self.screen.say(f"{self.spec.name}: {stage.name} was done before{but}")
        return has_product

    def check_begun(self, train: Stage) -> None:
        """Check that checkpoints to resume from are those of this training.

        Raises CommandError for those of other settings or data, RunFailedError for a training that
        has diverged.
        """
        begun = self.stamps.begun("train")
        if begun is not None and begun != train.key:
            before = json.loads(self.stamps.read("train.sources") or "null")
            now = self.spec.sources
            changed = [] if before is None else changed_sources(before, now)
            version = f"another version of {', '.join(changed)}" if changed else OTHER
            raise CommandError(
                f"{self.spec.checkpoints} is of {version}; remove {self.spec.folder}, or choose "
                "another --work"
            )
        reason = self.stamps.diverged("train", train.key)
        if reason is not None and not self.retry:
            raise RunFailedError("train", reason, self.spec.log_of("train"), state=DIVERGED)

    def train(self, stage: Stage) -> None:
        """Train. The checkpoints are checked later, in the process that averages them."""
        meter = TrainingMeter(self.spec.training)
        self.begin("train", meter)
        if self.spec.checkpoints.is_dir() and any(self.spec.checkpoints.iterdir()):
            repair = (*PYTHON, *PLUGIN, "repair", str(self.spec.checkpoints))
            self.command("train", repair, Meter())
        launch = SRUN if self.spec.srun else ()
        memory = self.command("train", (*launch, *PYTHON, *stage.command), meter)
        if memory and not self.spec.srun:  # otherwise it is the memory of srun itself
            self.stamps.measured("train", memory)
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
        steps = [self.step(stage) for stage in stages]
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
                self.stamps.finish(name, seconds)
                self.screen.end(name, seconds)
            elif event == "item":
                meter.read(line)
                self.progress(current.name, meter)

        starts = {stage.name: _size(self.spec.log_of(stage.name)) for stage in stages}
        command = (*PYTHON, *PLUGIN, "stages", json.dumps(steps))
        try:
            self.start(command, self.spec.log_of(current.name), read, copied=False)
        except CommandFailedError as failed:
            log = self.spec.log_of(current.name)
            failed.tail = last_lines(log, starts[current.name])
            raise explain(current.name, failed, log) from failed

    def step(self, stage: Stage) -> dict[str, object]:
        """A stage as an argument of the command ``stages``, see :func:`main`."""
        log = self.spec.log_of(stage.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        return {
            "name": stage.name,
            "log": str(log),
            "command": None if stage.name == "train" else stage.command,
            "output": None if stage.output is None else str(stage.output),
            "item": self.spec.item[0] if self.spec.item and stage.output else None,
            "check": stage.check,
        }

    def command(self, stage: str, command: Sequence[str], meter: Meter) -> int:
        """Run a command to its end; returns its peak memory."""
        log = self.spec.log_of(stage)

        def read(line: str) -> None:
            meter.read(line)
            self.progress(stage, meter)

        try:
            return self.start(command, log, read)
        except CommandFailedError as failed:
            raise explain(stage, failed, log) from failed

    def start(
        self, command: Sequence[str], log: Path, read: Callable[[str], None], copied: bool = True
    ) -> int:
        """Run a command with the environment and the lock of this run."""
        # by default, Weights & Biases names a run after its checkpoint folder and writes to the cwd
        wandb = {"WANDB_NAME": self.spec.name, "WANDB_DIR": str(self.spec.folder)}
        return run_process(
            command,
            folder=ROOT,
            environment={**wandb, **self.environment},
            log=log,
            read=read,
            lock=self.lock,
            copied=copied,
        )

    def begin(self, stage: str, meter: Meter) -> None:
        """Show that a stage begins."""
        self.screen.begin(stage)
        self.status_written = float("-inf")
        names = [each.name for each in self.stages]
        later = names[names.index(stage) + 1 :] if stage in names else None
        self.after = None if later is None else usual_seconds(self.spec, later)
        self.report(stage, meter)

    def progress(self, stage: str, meter: Meter) -> None:
        """Show the progress of a stage."""
        self.text = meter.text() or self.text
        self.screen.update(meter, self.after)
        self.report(stage, meter)

    def report(self, stage: str, meter: Meter) -> None:
        """Write the status, at most every ``STATUS_INTERVAL`` seconds."""
        if time.monotonic() - self.status_written < STATUS_INTERVAL:
            return
        self.status_written = time.monotonic()
        share, left = self.screen.share(), self.screen.left(self.after)
        log = str(self.spec.log_of(stage))
        self.write(Status(RUNNING, stage, share, left, meter.text(), log=log))

    def record(self, error: CommandError) -> None:
        """Record why the run ended; a training that diverged is not started again."""
        if not isinstance(error, RunFailedError):
            self.write(Status(FAILED, reason=str(error)))
            return
        if error.state == DIVERGED:
            self.stamps.write("train.diverged", f"{self.stamps.begun('train')}\n{error.reason}")
        log = str(error.log)
        status = Status(error.state, error.stage, text=self.text, reason=error.reason, log=log)
        self.write(status)
        if error.stage != PREPARE and not is_finished(self.spec):
            write_failure(self.spec, status)

    def write(self, status: Status) -> None:
        """Write the status, with the seconds since the start."""
        seconds = round(time.monotonic() - self.started, 1)
        write_status(self.spec.folder, replace(status, seconds=seconds))

    def meter(self, stage: Stage) -> Meter:
        """The meter of a stage after the training."""
        if stage.output is None or self.spec.item is None:
            return Meter()
        texts = [path for path in self.spec.data.glob("tok/test.*") if path.is_file()]
        sentences = len(read_lines(texts[0])) if texts else 0
        return LinesMeter("item", sentences, self.spec.item[1])


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def explain(stage: str, failed: CommandFailedError, log: Path) -> RunFailedError:
    """The error of a stage, with the reason that the last lines of its output give."""
    reason = divergence(failed.tail)
    if reason is not None:
        return RunFailedError(stage, reason, log, failed.tail, DIVERGED)
    errors = [line for line in failed.tail if ERROR.match(line)]
    reason = failed.reason
    if errors and not reason.startswith("killed"):
        reason = errors[-1].removeprefix("error: ")
    return RunFailedError(stage, reason, log, failed.tail)


def divergence(lines: Sequence[str]) -> str | None:
    """Why a training diverged, from its output; None if the output does not say that it did."""
    for pattern in (NOT_FINITE, NAN_LOSS, SAYS_DIVERGED):
        for match in filter(None, map(pattern.search, lines)):
            reason = match["reason"].strip()
            return f"the loss is {reason}" if pattern is NAN_LOSS else reason
    return None


def write_failure(spec: RunSpec, status: Status) -> None:
    """Record a run without a result: its settings, status and losses so far."""
    log = spec.log_of("train")
    # that of the failure itself: a training that has diverged is not repeated, but recorded again
    ended = Path(status.log).stat().st_mtime if Path(status.log).is_file() else time.time()
    record = {
        "experiment": spec.experiment,
        "norm": f"{spec.label}{spec.variant}",
        "seed": spec.seed,
        "differs": spec.differs,
        "state": status.state,
        "stage": status.stage,
        "reason": status.reason,
        "progress": status.text,
        "date": utc_date(ended),
        "curves": curves_of_log(log) if log.exists() else None,
    }
    spec.failure.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=2, sort_keys=True, ensure_ascii=False)
    write_text(spec.failure, f"{text}\n")


def make_folder(folder: Path, option: str) -> None:
    """Make a writable folder; CommandError names the option that changes it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"cannot make {folder}: {error.strerror}; choose another {option}"
        ) from error
    if not os.access(folder, os.W_OK):
        raise CommandError(f"{folder} cannot be written; choose another {option}")


def remove_leftovers(spec: RunSpec) -> None:
    """Remove temporary files of a killed execution of the same run."""
    for path in (
        *spec.folder.glob("*.tmp"),
        *spec.stages.glob("*.tmp"),
        *spec.result.parent.glob(f"{spec.result.stem}.*.tmp"),
    ):
        path.unlink()


def print_commands(spec: RunSpec) -> None:
    """Print the commands of the stages that are not finished, for a shell."""
    print(shlex.join(["cd", str(ROOT)]))
    print(shlex.join(["mkdir", "-p", str(spec.folder)]))
    if not is_prepared(spec):
        print(f"# {spec.name}: {PREPARE}\n{shlex.join(data_command(spec))}")
    stamps = Stamps(spec.stages)
    for stage in run_stages(spec):
        if stamps.read(stage.name) == stage.key and has_content(stage.product):
            print(f"# {spec.name}: {stage.name} was done before")
            continue
        launch = SRUN if spec.srun and stage.name == "train" else ()
        output = "" if stage.output is None else f" >{shlex.quote(str(stage.output))}"
        print(f"# {spec.name}: {stage.name}")
        print(f"{shlex.join([*launch, *PYTHON, *stage.command])}{output}")


# --- child processes -----------------------------------------------------------------------------

DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM", "--")
"""A command after this prefix ends with this process, even if this is killed."""
SETTINGS = "{'_name': None, 'common'"
"""Marks the line of 15,000 characters in which fairseq prints its configuration."""
KEEP_FREED_MEMORY = (
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776:glibc.malloc.hugetlb=1"
)
"""GLIBC_TUNABLES with which a process keeps freed memory, in huge pages if there are any. By
default, a training on a CPU allocates the memory of each batch anew, with a fault for each page."""
TAIL = 200  # lines of a failed command that are searched: chained tracebacks are long


class CommandFailedError(Exception):
    """A command failed.

    Attributes:
        reason: its exit status or signal.
        tail: the last lines that it printed.
    """

    def __init__(self, reason: str, tail: Sequence[str]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.tail = list(tail)


def require_setpriv() -> None:
    """Raise CommandError if ``DIE_WITH_PARENT`` does not work here."""
    try:
        subprocess.run([*DIE_WITH_PARENT, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(
            "no setpriv command that knows --pdeathsig; install util-linux 2.33 or newer"
        ) from error


def run_process(
    command: Sequence[str],
    *,
    folder: Path,
    environment: dict[str, str],
    log: Path,
    read: Callable[[str], None],
    lock: int,
    copied: bool = True,
) -> int:
    """Run a command and wait for it.

    Args:
        folder: the working directory.
        log: its output is appended here, without fairseq's configuration.
        read: called with each line of its stdout, and of its stderr if ``copied``.
        lock: a file descriptor that it inherits, so that the lock is held until it has ended.
        copied: append stdout and stderr to the log; if False, stderr only.

    Returns:
        its peak memory in bytes when it printed the last line; 0 if unknown.

    Raises:
        CommandFailedError: its exit status is not 0.
        CommandError: the log cannot be written; the command was ended.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    tail: deque[str] = deque(maxlen=TAIL)
    memory = 0
    with (
        _writing_log(log) as stream,
        subprocess.Popen(
            [*DIE_WITH_PARENT, *command],
            cwd=folder,
            env={
                "PYTHONWARNINGS": "ignore",
                "PYTHONUNBUFFERED": "1",
                "GLIBC_TUNABLES": KEEP_FREED_MEMORY,
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if copied else stream,
            text=True,
            encoding="utf-8",
            errors="replace",
            pass_fds=(lock,),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if copied and SETTINGS in line:
                    continue
                if copied:
                    stream.write(line)
                    stream.flush()
                    tail.append(line.rstrip("\n"))
                memory = max(memory, peak_memory(process.pid))
                read(line)
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        raise CommandFailedError(exit_reason(code), tail)
    return memory


@contextmanager
def _writing_log(log: Path) -> Iterator[TextIO]:
    """Append to a log; CommandError if its disk is full."""
    try:
        with open(log, "a", encoding="utf-8", errors="replace") as stream:
            yield stream
    except OSError as error:
        if error.filename not in (None, str(log)):  # of a command that cannot be started
            raise
        raise CommandError(
            f"cannot write {log}: {error.strerror}; mend this, for example free some space, and "
            "start the run again"
        ) from error


def peak_memory(pid: int) -> int:
    """The peak resident set size of a process so far, in bytes; 0 if unknown.

    ``getrusage`` of an ended child does not give it: its maximum includes the forked parent.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0  # not Linux, or the process has just ended
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(peak[1]) * 1024 if peak else 0


def last_lines(log: Path, start: int = 0) -> list[str]:
    """The last lines of a log, from byte ``start`` on."""
    with open(log, "rb") as stream:
        stream.seek(max(start, log.stat().st_size - 100_000))
        lines = stream.read().decode("utf-8", "replace").splitlines()
    return [line for line in lines if SETTINGS not in line][-TAIL:]


def exit_reason(code: int) -> str:
    """Describe how a process ended: ``exit status 1``, or the signal."""
    if code >= 0:
        return f"exit status {code}"
    hint = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


# --- several stages in one process ---------------------------------------------------------------
#
# The process imports torch and fairseq once for all of its stages.


class Counted:
    """A stream that reports each line with the prefix ``beginning`` to ``progress``."""

    def __init__(self, stream: TextIO, beginning: str, progress: TextIO) -> None:
        self.stream, self.beginning, self.progress = stream, beginning, progress

    def write(self, text: str) -> int:
        """Called by print with a whole line, then with the newline."""
        if text.startswith(self.beginning):
            print("item", file=self.progress, flush=True)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def main(argv: Sequence[str]) -> int:
    """The command ``stages``: several stages of a run in one process.

    JSON is a list of steps. A step has name, log, command (the arguments of Python, or null),
    output (a file for its stdout, or null), item (the prefix of the lines that report one item, or
    null) and check (the arguments of check_product). It prints "begin NAME", "end NAME", and "item"
    for each item. If a step fails, it exits with status 1; the reason is in the step's log.
    """
    if list(argv) in (["-h"], ["--help"]):
        print(f"usage: norm-plugin stages JSON\n\n{main.__doc__}")
        return 0
    progress = os.fdopen(os.dup(1), "w")
    for step in json.loads(argv[0]):
        print("begin", step["name"], file=progress, flush=True)
        run_step(step, progress)
        print("end", step["name"], file=progress, flush=True)
    return 0


def run_step(step: dict[str, Any], progress: TextIO) -> None:
    """Run a step; its stdout goes to its output file if it has one, everything else to its log."""
    logging.root.handlers.clear()  # handlers of the previous step write to its files
    with open(step["log"], "a", encoding="utf-8", errors="replace") as log:
        _redirect(sys.stderr, log)
        _redirect(sys.stdout, log)
        if step["output"]:
            write_output(step, log, progress)
        elif step["command"]:
            run_in_process(step["command"])
        if step["check"]:
            exit_on_error(lambda: check_product(*step["check"]))
        sys.stdout.flush()


def write_output(step: dict[str, Any], log: TextIO, progress: TextIO) -> None:
    """Run a command and write its stdout to a file, atomically."""
    output = Path(step["output"])
    new = output.with_name(f"{output.name}.tmp")
    stdout = sys.stdout
    with open(new, "w", encoding="utf-8") as stream:
        _redirect(stdout, stream)
        if step["item"]:
            sys.stdout = Counted(stdout, step["item"], progress)
        try:
            run_in_process(step["command"])
        finally:
            sys.stdout = stdout
            stdout.flush()
        os.fsync(stream.fileno())
    _redirect(stdout, log)
    os.replace(new, output)


def _redirect(stream: TextIO, target: TextIO) -> None:
    """Redirect a standard stream of this process and its children to a file."""
    stream.flush()
    os.dup2(target.fileno(), stream.fileno())


def run_in_process(command: Sequence[str]) -> None:
    """Do what ``python COMMAND`` does, for a command of this package or of fairseq.

    If the command fails, the process exits with status 1.
    """
    import norm_plugin.models  # noqa: F401  fairseq does not import a --user-dir twice
    from norm_plugin import cli

    _, module, *argv = command
    if module == "norm_plugin":
        exit_on_error(partial(cli.call, argv[0], argv[1:]))
    else:
        sys.argv = [module, *argv]
        exit_on_error(import_module(module).cli_main)


def exit_on_error(call: Callable[[], int | None]) -> None:
    """Call a command; exit if it fails."""
    try:
        run_command(lambda: call() or 0)
    except SystemExit as end:
        if end.code:
            raise


def check_product(stage: str, *arguments: str) -> None:
    """Raise CommandError unless the product of a stage is complete.

    A training may end without an error and without a checkpoint, and a translation may end early.

    Args:
        stage: "training" or "evaluation".
        arguments: for "training", the ``--save-dir``, and the flags of ``norm-plugin average`` if
            checkpoints are averaged; for "evaluation", its output, the prepared corpus and the
            metric.
    """
    from norm_lab.experiments.metrics import find_metric
    from norm_plugin.checkpoints.average import select_checkpoints
    from norm_plugin.checkpoints.files import LAST, load_checkpoint

    if stage == "evaluation":
        log, data, metric = arguments
        find_metric(metric).check_log(Path(log), Path(data))
        return
    folder, *averaging = arguments
    paths = [Path(folder) / LAST]
    if averaging:
        kind = "epoch" if averaging[0] == "--last-epochs" else "update"
        paths += select_checkpoints(Path(folder), kind, int(averaging[1]), None)
    else:
        paths.append(Path(folder) / "checkpoint_best.pt")
    for path in paths:
        load_checkpoint(path)
