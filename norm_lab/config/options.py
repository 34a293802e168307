"""The options of the commands ``run``, ``sweep``, ``status``, ``tune``, ``study`` and ``demo``.

Only the standard library is imported, so that ``--help`` of the scripts works before the
environment exists.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import takewhile
from pathlib import Path

from norm_lab.paths import CONFIGS
from norm_plugin.io.command_line import Parser, UsageError, at_least

OVERRIDES_TEXT = """
KEY=VALUE are overrides in hydra's syntax: norm=powernorm, placement=pre, seed=1, an option of the
norm (norm_variant=released), any value of the experiment's file (optimization.lr=[0.001]).
--norm-type powernorm is norm=powernorm, and so for all flags of norms."""
RUN_END = f"""
EXPERIMENT is the name of an experiment, as multi30k, or the path of its YAML file.{OVERRIDES_TEXT}
The same command resumes a stopped run, and does nothing for a finished one. Flags of fairseq-train
go to the end, after --. The full output of each stage is in <run>/logs/.
"""
GRID_TEXT = """
EXPERIMENT is an experiment, a study by its name or folder, or the YAML file of one of them.
Several values of a key, separated by commas, are several runs: norm=layernorm,powernorm
seed=1,2,3 are six."""
SWEEP_END = f"""{OVERRIDES_TEXT}
{GRID_TEXT}
The same command resumes a stopped sweep: it skips finished runs, repeats failed ones, and repeats
diverged ones only with --retry. Options of Slurm are hydra.launcher.KEY=VALUE.
"""
STATUS_END = """
EXPERIMENT is an experiment or a study, of which all runs that were begun in WORK are shown, or a
folder of runs or results. With KEY=VALUE[,VALUE] or an option as of sweep, the runs of that sweep
are shown, whether they were begun or not.
"""
STUDY_END = """
STUDY is a study by its name, folder or YAML file, which declares the arms (norms with their
options), the seeds, the comparisons and the grid of the tuning: docs/studies.md. Trials, runs and
the page go to WORK/studies/STUDY/. The same command resumes a stopped study.
"""
DEMO = """
Trains and scores a small Transformer on a toy corpus with layernorm, adanorm, powernorm and none
(or the norm of --norm-type), prints a table of BLEU scores and writes a page with curves. It takes
about three minutes on two cores.
"""
OVERRIDES = {
    "--norm-type": ("norm", "the norm (default: layernorm); see `norm-plugin list`"),
    "--seed": ("seed", "seed of weights, batches and random splits (default: 1)"),
    "--recipe": ("recipe", "the hyperparameters of a paper: adanorm, powernorm or xiong"),
    "--preset": ("preset", "a variant of the experiment, as cpu; an unknown one lists them"),
    "--subword": ("subword", "subword-nmt (default), or sentencepiece, trained on raw text"),
}
"""Options that are translated into overrides."""
NORM_FLAG = "--norm-"
SHORT = {"norm_type": "norm", "norm_placement": "placement"}
"""The short keys of overrides."""


LOCAL, SLURM = "local", "submitit_slurm"
LAUNCHER = "hydra.launcher."
"""The prefix of the keys of the options of SLURM."""
AUTO = "auto"
"""The value of ``gpus`` for one GPU, or for the CPU if there is none."""


@dataclass(frozen=True)
class Request:
    """The options of ``run``, ``sweep``, ``status``, ``tune``, ``study`` or ``demo``.

    Paths are absolute.

    Attributes:
        experiment: the name of an experiment or a study, or the path of a YAML file.
        overrides: the values of overrides for every run, by their keys in hydra's syntax; None for
            ``~KEY``.
        runs: the overrides of each run, in order; None: those of the experiment or the study.
        extra_flags: flags of ``fairseq-train`` for every run, which override its settings.
        grid: whether there may be several runs.
        gpus: a number, or AUTO.
        launcher: LOCAL or SLURM.

    The others are the options of their names, which the parsers below explain.
    """

    experiment: str
    overrides: Mapping[str, str | None] = field(default_factory=dict)
    runs: tuple[tuple[str, ...], ...] | None = None
    extra_flags: tuple[str, ...] = ()
    grid: bool = False
    user_dir: Path | None = None
    raw: Path | None = None
    pretrained: Path | None = None
    work: Path | None = None
    results: Path | None = None
    fold_norms: bool = False
    smoke: bool = False
    tensorboard: bool = False
    gpus: str = AUTO
    scale_batch_size: bool = False
    srun: bool = False
    retry: bool = False
    dry_run: bool = False
    verbose: bool = False
    status: bool = False
    tuned: bool = False
    launcher: str = LOCAL
    jobs: int | None = None
    threads: int | None = None

    @property
    def lines(self) -> list[str]:
        """The overrides for every run, without the options of the launcher."""
        own = [item for item in self.overrides.items() if not item[0].startswith(LAUNCHER)]
        return [key if value is None else f"{key}={value}" for key, value in own]

    @property
    def outline(self) -> bool:
        """Whether only the names of the runs and their state matter, not the values of settings."""
        return self.status or (self.dry_run and not self.verbose)

    @property
    def elsewhere(self) -> bool:
        """Whether the runs are not for this machine, so that its GPUs do not matter."""
        return self.dry_run or self.status or self.srun or self.launcher != LOCAL


class RunParser(Parser):
    """A parser that says of an unknown flag where flags of fairseq-train belong."""

    def about_unknown(self, words: Sequence[str]) -> str:
        message = super().about_unknown(words)
        if "did you mean" in message:
            return message
        return f"{message}; flags of fairseq-train go to the end: -- {' '.join(words)}"


def run_parser(file: Path | None = None) -> RunParser:
    """Return the parser of ``run``; the help describes the experiment of a file if given."""
    parser = _parser("run", describe(file) if file else "One run, from raw text to a score.")
    parser.epilog = RUN_END + EXAMPLES["run"]
    parser.add_argument("experiment", metavar="EXPERIMENT", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=argparse.SUPPRESS)
    _add_overrides(parser)
    _add_several_gpus(parser)
    return parser


GRIDS = {
    "sweep": "Execute a grid of runs, several at once.",
    "status": "Print the status of runs.",
    "tune": "Train each arm of a study at each point of the grid in its section tune, and write\n"
    "the best values of each arm to tuned.json in its folder.",
    "study": "Tune the arms of a study, run each at its tuned values, and write the page.",
}
EXAMPLES = {
    "run": "\nexample:\n  norm-plugin run toy --norm-type powernorm --seed 2\n",
    "sweep": "\nexample:\n  norm-plugin sweep toy norm=layernorm,powernorm seed=1,2,3 --jobs 2\n",
    "status": "\nexample:\n  norm-plugin status toy\n",
    "tune": "\nexample:\n  norm-plugin tune encoder_norms\n",
    "study": "\nexample:\n  norm-plugin study encoder_norms --dry-run\n",
}
ENDS = {"sweep": SWEEP_END, "status": STATUS_END, "tune": STUDY_END, "study": STUDY_END}
FOR_STATUS = ("--help", "--user-dir", "--work", "--results", "--smoke", "--fold-norms", "--tuned")
"""The options that ``status`` shows; it accepts all others of ``sweep``, too."""


def sweep_parser(verb: str = "sweep") -> RunParser:
    """Return the parser of ``sweep``, ``status``, ``tune`` and ``study``."""
    parser = _parser(verb, GRIDS[verb])
    parser.epilog = ENDS[verb] + EXAMPLES[verb]
    parser.set_defaults(grid=True, status=verb == "status", tuned=False)
    add = parser.add_argument
    add("experiment", metavar=_experiment(verb), help=argparse.SUPPRESS)
    add("overrides", nargs="*", metavar="KEY=VALUE[,VALUE]", help=argparse.SUPPRESS)
    text = "parallel runs (default: one per GPU; for small models on a CPU, one per core)"
    add("--jobs", type=at_least(1), metavar="N", help=text)
    text = "threads per run (default: the cores divided by the jobs)"
    add("--threads", type=at_least(1), metavar="N", help=text)
    text = "local: on this machine; submitit_slurm: one Slurm job per run (default: %(default)s)"
    add("--launcher", choices=(LOCAL, SLURM), default=LOCAL, help=text)
    add("--status", action="store_true", help="print the status of the runs")
    if verb in ("sweep", "status"):
        text = "use the values that `norm-plugin tune` has selected for each arm of a study"
        add("--tuned", action="store_true", help=text)
    _add_overrides(parser)
    hide_options(parser, list(OVERRIDES))  # a grid has several values of these
    if verb == "status":
        shown = parser._option_string_actions
        hide_options(parser, [flag for flag in shown if flag not in (*FOR_STATUS, "-h")])
    return parser


def hide_options(parser: argparse.ArgumentParser, flags: Sequence[str]) -> None:
    """Leave options out of the help."""
    for flag in flags:
        parser._option_string_actions[flag].help = argparse.SUPPRESS


def demo_parser() -> RunParser:
    """Return the parser of ``demo``."""
    parser = _parser("demo", DEMO)
    parser.epilog = "\nexample:\n  norm-plugin demo --norm-type rmsnorm\n"
    parser.set_defaults(grid=True, experiment="toy")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=argparse.SUPPRESS)
    _add_overrides(parser)
    _add_several_gpus(parser)
    return parser


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse options and overrides in any order; flags after ``--`` become ``extra_flags``.

    Raises:
        CommandError: the command line is wrong.
    """
    end = list(argv).index("--") if "--" in argv else len(argv)
    args = parser.parse_intermixed_args(norm_flags_as_overrides(argv[:end]))
    args.extra_flags = tuple(argv[end + 1 :])
    overrides = list(args.overrides)
    overrides += [f"++common.{key}=true" for key in ("fp16", "bf16") if getattr(args, key)]
    for flag, (key, _) in OVERRIDES.items():
        value = getattr(args, flag[2:].replace("-", "_"))
        overrides += [] if value is None else [f"{key}={value}"]
    args.overrides = overrides_by_key(overrides)
    return args


def overrides_by_key(overrides: Iterable[str]) -> dict[str, str | None]:
    """Return overrides in hydra's syntax by key, as a :class:`Request` has them.

    Raises:
        UsageError: a key has two values, of which hydra would take the last.
    """
    given: dict[str, str | None] = {}
    names: dict[str, str | None] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        name, value = key.lstrip("+~").removeprefix("model."), text if equals else None
        if names.setdefault(name, value) != value:
            raise UsageError(
                f"{name} is given twice, as {names[name]} and {value}; give one of them, or in a "
                "sweep both, separated by a comma"
            )
        given[key] = value
    return given


def norm_flags_as_overrides(argv: Sequence[str]) -> list[str]:
    """Return a command line with the flags of norms as overrides.

    ``--norm-type powernorm --norm-alpha-fwd 0.9`` becomes ``norm=powernorm norm_alpha_fwd=0.9``.
    Other flags that begin alike are left for the parser.
    """
    words: list[str] = []
    rest = list(argv)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        key = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith(NORM_FLAG) or key not in norm_keys():
            words.append(f"{flag}{equals}{value}")
        elif equals or rest:
            words.append(f"{SHORT.get(key, key)}={value if equals else rest.pop(0)}")
        else:
            raise UsageError(f"{flag} needs a value")
    return words


@cache
def norm_keys() -> set[str]:
    """Return the keys of all flags of norms, as fairseq's settings have them."""
    from norm_plugin.declarations.flags import (
        CHOICES,
        NORM_TYPE,
        SITE_FLAGS,
        VALUES,
        norm_type_field,
        option_field,
    )
    from norm_plugin.declarations.reading import read_norms

    options = {option_field(each.name) for norm in read_norms().values() for each in norm.options}
    return {NORM_TYPE, *CHOICES, *VALUES, *map(norm_type_field, SITE_FLAGS), *options}


def request_of(args: argparse.Namespace) -> Request:
    """Return the options of :func:`parse` as a request, with absolute paths."""
    names = [each.name for each in fields(Request) if each.name in args]
    given = {name: getattr(args, name) for name in names}
    for name in ("user_dir", "raw", "pretrained", "work", "results"):
        given[name] = None if given[name] is None else Path(given[name]).absolute()
    return Request(**given)


def description_file(name: str) -> Path | None:
    """Return the YAML file of an experiment, found without a YAML parser, or None."""
    if name.endswith(".yaml"):
        return Path(name) if Path(name).is_file() else None
    files = sorted(CONFIGS.glob("*.yaml"))
    named = (path for path in files if f" name: {name}\n" in path.read_text(encoding="utf-8"))
    return next(named, next((path for path in files if path.stem == name), None))


def describe(file: Path) -> str:
    """Return the comment at the top of an experiment's YAML file."""
    lines = file.read_text(encoding="utf-8").splitlines()
    head = takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(line[1:].removeprefix(" ") for line in head)


def _experiment(verb: str) -> str:
    """Return how the help of a verb calls what is run."""
    return {"demo": "", "tune": "STUDY", "study": "STUDY"}.get(verb, "EXPERIMENT")


def _parser(verb: str, description: str) -> RunParser:
    """Return a parser with the options that all commands share."""
    parser = RunParser(
        prog=f"norm-plugin {verb}",
        usage=f"norm-plugin {verb} {_experiment(verb)} [KEY=VALUE...] [OPTIONS] [-- FLAGS]",
        description=description,
    )
    add = parser.add_argument_group("where and how").add_argument
    add("--user-dir", metavar="DIR", help="a fairseq --user-dir with norms of your own")
    text = "raw corpus (default: NORM_DATA_DIR/<corpus>, or downloaded)"
    add("--raw", metavar="DIR", help=text)
    text = "fine-tune this checkpoint of norm_masked_lm (beside the dict.txt of its data)"
    add("--pretrained", metavar="FILE", help=text)
    text = "data, checkpoints, translations (default: work/)"
    add("--work", metavar="DIR", help=text)
    text = "scores of the runs (default: WORK/results/)"
    add("--results", metavar="DIR", help=text)
    add("--fp16", action="store_true", help="train in half precision (on a GPU)")
    add("--bf16", action="store_true", help="train in bfloat16 (on a GPU)")
    text = "evaluate with norms folded into the linear maps"
    add("--fold-norms", action="store_true", help=text)
    text = "try all stages: a tiny model, 60 updates"
    add("--smoke", action="store_true", help=text)
    add("--tensorboard", action="store_true", help="write curves to <run>/tensorboard")
    text = "train a run that has diverged again"
    add("--retry", action="store_true", help=text)
    add("--dry-run", action="store_true", help="say how many runs there are, and where they go")
    text = "with --dry-run: check all settings, and print the commands"
    add("--verbose", action="store_true", help=text)
    return parser


def _add_overrides(parser: Parser) -> None:
    """Add the options that are overrides by another name."""
    group = parser.add_argument_group("what is run")
    for flag, (key, text) in OVERRIDES.items():
        group.add_argument(flag, metavar=key[0].upper(), help=f"{key}={key[0].upper()}: {text}")


def _add_several_gpus(parser: Parser) -> None:
    """Add the options of ``run`` and ``demo`` that ``sweep`` does not have."""
    add = parser.add_argument_group("on several GPUs").add_argument
    text = "GPUs to train on (default: one, or the CPU if there is none); the batch size per "
    text += "update does not change, so N must divide it"
    add("--gpus", default=AUTO, metavar="N", help=text)
    text = "multiply the batch size by the number of GPUs, instead of dividing update_freq"
    add("--scale-batch-size", action="store_true", help=text)
    text = "in a Slurm job, train by srun: scripts/slurm/train.sh"
    add("--srun", action="store_true", help=text)
