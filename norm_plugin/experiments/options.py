"""The commands ``run``, ``sweep``, ``status``, ``demo`` and ``job``, and their options.

Before the options are read, only the standard library is imported: the scripts of the experiments
answer ``--help`` before the environment exists.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from norm_plugin.commands.command_line import CommandError, at_least

CONFIG_FOLDERS = tuple(folder / "configs" for folder in Path(__file__).resolve().parents[1:3])
"""Of an installed package, and of a checkout."""

RUN_END = """
KEY=VALUE are overrides in hydra's syntax: norm=powernorm, placement=pre, seed=1, recipe=powernorm,
preset=cpu, the norm's own options (norm_variant=released), and every value of the experiment's
YAML file in configs/ (optimization.lr=[0.001]).

A stopped run goes on with the same command. A finished run does nothing. The full output of each
stage is in <run>/logs/.
"""

SWEEP_END = """
The values of one key are separated by commas: norm=layernorm,powernorm placement=pre,post
seed=1,2,3 are twelve runs. Instead of EXPERIMENT, name a file of configs/study/ for a grid that is
no plain product. A stopped sweep goes on with the same command: finished runs are skipped, runs
that failed are tried again, and runs that diverged are not, unless --retry is given.

hydra.launcher.KEY=VALUE goes to the launcher, such as hydra.launcher.partition=gpu.
"""

DEMO = """
The toy corpus for four norms: trains, averages, decodes and scores a small Transformer
with layernorm, adanorm, powernorm and none (or the one of --norm-type), prints a table
and writes a page. About three minutes on two cores.
"""
DEMO_NORMS = ("layernorm", "adanorm", "powernorm", "none")

OVERRIDES = {
    "--norm-type": ("norm", "the norm (default: layernorm); `norm-plugin list`"),
    "--seed": ("seed", "of weights, batches and random splits (default: 1)"),
    "--recipe": (
        "recipe",
        "the paper whose hyperparameters are used, adanorm (Xu et al. 2019), powernorm (Shen et "
        "al. 2020) or xiong (Xiong et al. 2020), where that has results on the corpus",
    ),
    "--preset": (
        "preset",
        "paper or cpu; of tinyshakespeare cpu, short, halves, deep or nanogpt; of toy demo",
    ),
    "--subword": ("subword", "subword-nmt (default), or sentencepiece, trained on raw text"),
}
"""Options that say the same as an override, which they are translated into."""

UNKNOWN = "unrecognized arguments: "  # argparse's words


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised."""

    def error(self, message: str) -> NoReturn:
        """Raise CommandError, which says where the flags of fairseq-train belong."""
        if message.startswith(UNKNOWN):
            flags = message.removeprefix(UNKNOWN)
            message += f"; flags of fairseq-train stand at the end, as in -- {flags}"
        raise CommandError(f"{message}; see --help")


def run(argv: Sequence[str]) -> int:
    """The command ``run``."""
    name = next(iter(argv), "")
    args = parse(run_parser(name if description_file(name) else None), argv)
    from norm_plugin.experiments.sweep import run_one

    return run_one(args)


def job(argv: Sequence[str]) -> int:
    """The command ``job``: a run of a sweep, which has composed it."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin job", description="One run of a sweep, from the file that it wrote."
    )
    parser.add_argument("spec", type=Path, metavar="FILE")
    parser.add_argument("--retry", action="store_true", help="train again what has diverged")
    parser.set_defaults(dry_run=False)
    from norm_plugin.experiments.sweep import run_one

    return run_one(parser.parse_args(argv))


def sweep(argv: Sequence[str], verb: str = "sweep") -> int:
    """The command ``sweep``."""
    args = parse(sweep_parser(verb), argv)
    from norm_plugin.experiments.sweep import main

    return main(args)


def status(argv: Sequence[str]) -> int:
    """The command ``status``: that of a sweep, which starts nothing."""
    return sweep(argv, "status")


def tune(argv: Sequence[str]) -> int:
    """The command ``tune``."""
    args = parse(sweep_parser("tune"), argv)
    from norm_plugin.experiments.tune import main

    return main(args)


def demo(argv: Sequence[str]) -> int:
    """The command ``demo``."""
    args = parse(demo_parser(), argv)
    given = {override.partition("=")[0] for override in args.overrides}
    defaults = {"norm": ",".join(DEMO_NORMS), "preset": "demo"}
    args.overrides[:0] = [f"{key}={value}" for key, value in defaults.items() if key not in given]
    from norm_plugin.experiments.sweep import run_demo

    return run_demo(args)


def run_parser(name: str | None = None) -> Parser:
    """The options of ``run``.

    Args:
        name: of the experiment, whose description is part of the help.
    """
    parser = _parser("run", describe(name) if name else "One run, from raw text to a score.")
    parser.epilog = RUN_END
    parser.add_argument("experiment", help="as multi30k; or the path of a YAML file of your own")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    _add_one_run(parser)
    return parser


GRIDS = {
    "sweep": "A grid of runs, several at once; status prints how it stands.",
    "status": "Print how the runs of a sweep stand.",
    "tune": "Train each arm of a study at each point of the grid in its section tune, and write\n"
    "each arm's own best values to STUDY.tuned.json beside the study file.",
    "study": "Tune the arms of a study, run each at its own values, and write the page.",
}


def sweep_parser(verb: str = "sweep") -> Parser:
    """The options of ``sweep``, ``status``, ``tune`` and ``study``."""
    parser = _parser(verb, GRIDS.get(verb, GRIDS["sweep"]))
    parser.epilog = SWEEP_END
    parser.set_defaults(grid=True, status=verb == "status", tuned=False)
    parser.add_argument(
        "experiment", help="an experiment, a grid of configs/study/, or the path of a YAML file"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE[,VALUE]")
    parser.add_argument(
        "--jobs", type=at_least(1), metavar="N", help="runs at once (default: one a GPU, or one)"
    )
    parser.add_argument(
        "--threads",
        type=at_least(1),
        metavar="N",
        help="threads of each run (default: the cores divided by the jobs)",
    )
    parser.add_argument(
        "--launcher",
        choices=("local", "submitit_slurm"),
        help="local: on this machine; submitit_slurm: a Slurm job a run (default: %(default)s)",
    )
    parser.add_argument("--status", action="store_true", help="print the state of the grid")
    if verb in ("sweep", "status"):
        parser.add_argument(
            "--tuned",
            action="store_true",
            help="each arm of a study at its own values, as `norm-plugin tune` has chosen them",
        )
    return parser


def demo_parser() -> Parser:
    """The options of ``demo``."""
    parser = _parser("demo", DEMO)
    parser.set_defaults(grid=True, experiment="toy")
    _add_one_run(parser)
    return parser


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Options and overrides in any order; what follows ``--`` becomes ``further``.

    Raises CommandError for a wrong command line.
    """
    end = list(argv).index("--") if "--" in argv else len(argv)
    args = parser.parse_intermixed_args(list(argv[:end]))
    precision = [flag for flag in ("--fp16", "--bf16") if getattr(args, flag[2:])]
    args.further = [*precision, *argv[end + 1 :]]
    args.overrides = list(getattr(args, "overrides", []))
    for flag, (key, _) in OVERRIDES.items():
        value = getattr(args, flag[2:].replace("-", "_"), None)
        args.overrides += [] if value is None else [f"{key}={value}"]
    return args


def description_file(name: str) -> Path | None:
    """The YAML file of an experiment, by its text alone; None where there is none of that name."""
    if name.endswith(".yaml"):
        return Path(name) if Path(name).is_file() else None
    files = [path for folder in CONFIG_FOLDERS for path in sorted(folder.glob("*.yaml"))]
    own_name = re.compile(
        rf"^ +experiment:\n(?: {{8}}.*\n)*? {{8}}name: {re.escape(name)}$", re.MULTILINE
    )
    named = (path for path in files if own_name.search(path.read_text(encoding="utf-8")))
    return next(named, next((path for path in files if path.stem == name), None))


def describe(name: str) -> str:
    """The comment at the head of an experiment's YAML file."""
    path = description_file(name)
    if path is None:
        raise CommandError(f"no experiment {name}")
    lines = path.read_text(encoding="utf-8").splitlines()
    head = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    return "\n".join(line[1:].removeprefix(" ") for line in head)


def _parser(verb: str, description: str) -> Parser:
    """The options that all commands have, and the defaults of those that only some have."""
    experiment = "" if verb == "demo" else " EXPERIMENT"
    parser = Parser(
        prog=f"norm-plugin {verb}",
        usage=f"norm-plugin {verb}{experiment} [KEY=VALUE...] [OPTIONS] [-- FLAGS]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(
        grid=False, status=False, launcher="local", gpus="auto", change_batch=False, srun=False
    )
    group = parser.add_argument_group("where and how")
    for flag, metavar, text in (
        ("--user-dir", "DIR", "a fairseq --user-dir with norms of your own"),
        (
            "--raw",
            "DIR",
            "folder with the raw corpus (default: NORM_DATA_DIR/<corpus>, else downloaded)",
        ),
        (
            "--pretrained",
            "FILE",
            "for classification: fine-tune this checkpoint of norm_masked_lm; the dict.txt of its "
            "data must lie beside it",
        ),
        (
            "--work",
            "DIR",
            "for data, checkpoints and translations (default: work in the checkout)",
        ),
        (
            "--results",
            "DIR",
            "for <experiment>/<norm>-seed<N>.json (default: results in --work)",
        ),
    ):
        group.add_argument(flag, metavar=metavar, help=text)
    for flag, text in (
        ("--fp16", "train in half precision (on a GPU)"),
        ("--bf16", "the same in bfloat16"),
        (
            "--fold-norms",
            "evaluate with the norms folded into the linear maps after them, where possible",
        ),
        ("--smoke", "the whole path with a tiny model and 60 updates"),
        ("--tensorboard", "write curves to <run>/tensorboard"),
        ("--retry", "train again what has diverged with these settings"),
        ("--dry-run", "print what would be run, and run nothing"),
    ):
        group.add_argument(flag, action="store_true", help=text)
    return parser


def _add_one_run(parser: Parser) -> None:
    """The options of single runs, which sweeps lack."""
    group = parser.add_argument_group("what is run")
    for flag, (key, text) in OVERRIDES.items():
        group.add_argument(flag, metavar=key[0].upper(), help=f"{key}={key[0].upper()}: {text}")
    group = parser.add_argument_group("on several GPUs")
    group.add_argument(
        "--gpus",
        metavar="N",
        help="GPUs to train on (default: one, or the CPU where there is none); the batch of an "
        "update stays that of the recipe, or N is refused",
    )
    group.add_argument(
        "--change-batch", action="store_true", help="let the batch grow with the GPUs instead"
    )
    group.add_argument(
        "--srun", action="store_true", help="in a Slurm job, train by srun: scripts/slurm/train.sh"
    )
