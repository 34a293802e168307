"""The options of the commands ``run``, ``sweep``, ``status``, ``tune``, ``study`` and ``demo``.

Only the standard library is imported, so that ``--help`` of the scripts works before the
environment exists.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NoReturn

from norm_lab.paths import CONFIGS
from norm_plugin.io.command_line import CommandError, at_least

RUN_END = """
KEY=VALUE are overrides in hydra's syntax: norm=powernorm, placement=pre, seed=1, recipe=powernorm,
preset=cpu, the norm's own options (norm_variant=released), and every value of the experiment's
YAML file in configs/ (optimization.lr=[0.001]).

The same command resumes a stopped run, and does nothing for a finished one. The full output of
each stage is in <run>/logs/.
"""
SWEEP_END = """
Separate the values of a key by commas: norm=layernorm,powernorm placement=pre,post seed=1,2,3 are
twelve runs. For a grid that is not a product, give the name of a file of configs/study/ as
EXPERIMENT. The same command resumes a stopped sweep: it skips finished runs, repeats failed ones,
and repeats diverged ones only with --retry.

hydra.launcher.KEY=VALUE sets an option of the launcher: hydra.launcher.partition=gpu.
"""
DEMO = """
Trains and scores a small Transformer on a toy corpus with layernorm, adanorm, powernorm and none
(or the norm of --norm-type), prints a table of BLEU scores and writes a page with curves. It takes
about three minutes on two cores.
"""
OVERRIDES = {
    "--norm-type": ("norm", "the norm (default: layernorm); see `norm-plugin list`"),
    "--seed": ("seed", "seed of weights, batches and random splits (default: 1)"),
    "--recipe": (
        "recipe",
        "the paper whose hyperparameters are used: adanorm (Xu et al. 2019), powernorm (Shen et "
        "al. 2020) or xiong (Xiong et al. 2020), if it has results on the corpus; on IWSLT14 also "
        "powernorm_released, of PowerNorm's released script",
    ),
    "--preset": (
        "preset",
        "paper or cpu; of tinyshakespeare cpu, short, halves, deep, nanogpt, nanogpt_gpu, fair, "
        "fair_deep, xl, tensorized, xl_halves or tensorized_halves; of enwik8, ptb and "
        "wikitext103 plain; of toy demo",
    ),
    "--subword": ("subword", "subword-nmt (default), or sentencepiece, trained on raw text"),
}
"""Options that are translated into overrides."""
UNKNOWN = "unrecognized arguments: "  # as argparse prints it


LOCAL, SLURM = "local", "submitit_slurm"
AUTO = "auto"
"""The value of ``gpus`` for one GPU, or for the CPU if there is none."""


@dataclass(frozen=True)
class Request:
    """The options of ``run``, ``sweep``, ``status``, ``tune``, ``study`` or ``demo``.

    Paths are absolute.

    Attributes:
        experiment: the name of an experiment or a study, or the path of a YAML file.
        overrides: overrides for every run, in hydra's syntax.
        runs: the overrides of each run, in order; None: those of the experiment or the study.
        extra_flags: flags of ``fairseq-train`` for every run, which override its settings.
        grid: whether there may be several runs.
        user_dir: the user's own ``--user-dir``.
        raw: the folder of the raw corpus.
        pretrained: the checkpoint to fine-tune.
        work: the folder for data and checkpoints; None: that of the checkout.
        results: the folder of the results; None: that in ``work``.
        fold_norms: evaluate with folded norms.
        smoke: test all stages with a tiny model.
        tensorboard: write curves for TensorBoard.
        gpus: a number, or AUTO.
        scale_batch_size: multiply the batch size by the number of GPUs.
        srun: train by srun, in a Slurm job.
        retry: repeat the training of a run that has diverged.
        dry_run: print the commands without running them.
        status: only print the status of the runs.
        tuned: use the tuned values of each arm.
        launcher: LOCAL or SLURM.
        jobs: the number of parallel runs; None: one per GPU, or one.
        threads: threads per run; None: the cores divided by the jobs.
    """

    experiment: str
    overrides: tuple[str, ...] = ()
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
    status: bool = False
    tuned: bool = False
    launcher: str = LOCAL
    jobs: int | None = None
    threads: int | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether the runs are not for this machine, so that its GPUs do not matter."""
        return self.dry_run or self.status or self.srun or self.launcher != LOCAL


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors."""

    def error(self, message: str) -> NoReturn:
        """Raise CommandError; for an unknown flag, say where flags of fairseq-train belong."""
        if message.startswith(UNKNOWN):
            flags = message.removeprefix(UNKNOWN)
            message += f"; put flags of fairseq-train at the end, as in -- {flags}"
        raise CommandError(f"{message}; see --help")


def run_parser(name: str | None = None) -> Parser:
    """Return the parser of ``run``; the help describes the experiment ``name`` if given."""
    parser = _parser("run", describe(name) if name else "One run, from raw text to a score.")
    parser.epilog = RUN_END
    parser.add_argument("experiment", help="its name, as multi30k, or the path of a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    _add_one_run(parser)
    return parser


GRIDS = {
    "sweep": "Execute a grid of runs, several at once.",
    "status": "Print the status of the runs of a sweep.",
    "tune": "Train each arm of a study at each point of the grid in its section tune, and write\n"
    "the best values of each arm to STUDY.tuned.json beside the study file.",
    "study": "Tune the arms of a study, run each at its tuned values, and write the page.",
}


def sweep_parser(verb: str = "sweep") -> Parser:
    """Return the parser of ``sweep``, ``status``, ``tune`` and ``study``."""
    parser = _parser(verb, GRIDS.get(verb, GRIDS["sweep"]))
    parser.epilog = SWEEP_END
    parser.set_defaults(grid=True, status=verb == "status", tuned=False)
    add = parser.add_argument
    add("experiment", help="an experiment, a grid of configs/study/, or the path of a YAML file")
    add("overrides", nargs="*", metavar="KEY=VALUE[,VALUE]")
    text = "parallel runs (default: one per GPU, or one)"
    add("--jobs", type=at_least(1), metavar="N", help=text)
    text = "threads per run (default: the cores divided by the jobs)"
    add("--threads", type=at_least(1), metavar="N", help=text)
    text = "local: on this machine; submitit_slurm: one Slurm job per run (default: %(default)s)"
    add("--launcher", choices=(LOCAL, SLURM), help=text)
    add("--status", action="store_true", help="print the status of the runs")
    if verb in ("sweep", "status"):
        text = "use the values that `norm-plugin tune` has selected for each arm of a study"
        add("--tuned", action="store_true", help=text)
    return parser


def demo_parser() -> Parser:
    """Return the parser of ``demo``."""
    parser = _parser("demo", DEMO)
    parser.set_defaults(grid=True, experiment="toy")
    _add_one_run(parser)
    return parser


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse options and overrides in any order; flags after ``--`` become ``extra_flags``.

    Raises:
        CommandError: the command line is wrong.
    """
    end = list(argv).index("--") if "--" in argv else len(argv)
    args = parser.parse_intermixed_args(list(argv[:end]))
    args.extra_flags = list(argv[end + 1 :])
    args.overrides = list(getattr(args, "overrides", []))
    args.overrides += [f"++common.{key}=true" for key in ("fp16", "bf16") if getattr(args, key)]
    for flag, (key, _) in OVERRIDES.items():
        value = getattr(args, flag[2:].replace("-", "_"), None)
        args.overrides += [] if value is None else [f"{key}={value}"]
    return args


def request_of(args: argparse.Namespace) -> Request:
    """Return the options of :func:`parse` as a request, with absolute paths."""
    names = [field.name for field in fields(Request) if field.name in args]
    given = {name: getattr(args, name) for name in names}
    for name in ("overrides", "extra_flags"):
        given[name] = tuple(given[name])
    for name in ("user_dir", "raw", "pretrained", "work", "results"):
        given[name] = None if given[name] is None else absolute_path(given[name])
    return Request(**given)


def absolute_path(path: str) -> Path:
    """Return an absolute path, without resolving links."""
    return Path(os.getcwd(), path)


def description_file(name: str) -> Path | None:
    """Return the YAML file of an experiment, found without a YAML parser, or None."""
    if name.endswith(".yaml"):
        return Path(name) if Path(name).is_file() else None
    files = sorted(CONFIGS.glob("*.yaml"))
    own_name = re.compile(
        rf"^ +experiment:\n(?: {{8}}.*\n)*? {{8}}name: {re.escape(name)}$", re.MULTILINE
    )
    named = (path for path in files if own_name.search(path.read_text(encoding="utf-8")))
    return next(named, next((path for path in files if path.stem == name), None))


def describe(name: str) -> str:
    """Return the comment at the top of an experiment's YAML file."""
    path = description_file(name)
    if path is None:
        raise CommandError(f"there is no experiment {name}")
    lines = path.read_text(encoding="utf-8").splitlines()
    head = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    return "\n".join(line[1:].removeprefix(" ") for line in head)


def _parser(verb: str, description: str) -> Parser:
    """Return a parser with the options that all commands share, and defaults for the others."""
    experiment = "" if verb == "demo" else " EXPERIMENT"
    parser = Parser(
        prog=f"norm-plugin {verb}",
        usage=f"norm-plugin {verb}{experiment} [KEY=VALUE...] [OPTIONS] [-- FLAGS]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(
        grid=False, status=False, launcher="local", gpus="auto", scale_batch_size=False, srun=False
    )
    add = parser.add_argument_group("where and how").add_argument
    add("--user-dir", metavar="DIR", help="a fairseq --user-dir with norms of your own")
    text = "folder with the raw corpus (default: NORM_DATA_DIR/<corpus>, else downloaded)"
    add("--raw", metavar="DIR", help=text)
    text = "for classification: fine-tune this checkpoint of norm_masked_lm; the dict.txt of its "
    text += "data must be in the same folder"
    add("--pretrained", metavar="FILE", help=text)
    text = "for data, checkpoints and translations (default: work in the checkout)"
    add("--work", metavar="DIR", help=text)
    text = "for <experiment>/<norm>-seed<N>.json (default: results in --work)"
    add("--results", metavar="DIR", help=text)
    add("--fp16", action="store_true", help="train in half precision (on a GPU)")
    add("--bf16", action="store_true", help="train in bfloat16 (on a GPU)")
    text = "evaluate with the norms folded into the linear maps that follow, where possible"
    add("--fold-norms", action="store_true", help=text)
    text = "test all stages with a tiny model and 60 updates"
    add("--smoke", action="store_true", help=text)
    add("--tensorboard", action="store_true", help="write curves to <run>/tensorboard")
    text = "repeat the training of a run that has diverged with these settings"
    add("--retry", action="store_true", help=text)
    add("--dry-run", action="store_true", help="print the commands without running them")
    return parser


def _add_one_run(parser: Parser) -> None:
    """Add the options of ``run`` and ``demo`` that ``sweep`` does not have."""
    group = parser.add_argument_group("what is run")
    for flag, (key, text) in OVERRIDES.items():
        group.add_argument(flag, metavar=key[0].upper(), help=f"{key}={key[0].upper()}: {text}")
    add = parser.add_argument_group("on several GPUs").add_argument
    text = "GPUs to train on (default: one, or the CPU if there is none); the batch size per "
    text += "update does not change, so N must divide it"
    add("--gpus", metavar="N", help=text)
    text = "multiply the batch size by the number of GPUs, instead of dividing update_freq"
    add("--scale-batch-size", action="store_true", help=text)
    text = "in a Slurm job, train by srun: scripts/slurm/train.sh"
    add("--srun", action="store_true", help=text)
