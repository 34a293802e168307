"""The options of ``average``, ``fold`` and ``repair``, whose modules import torch."""

from __future__ import annotations

from pathlib import Path

from norm_plugin.io.command_line import Parser, at_least, existing
from norm_plugin.io.user_dirs import add_user_dir

MODES = ("average", "last")
"""The values of --running-stats of ``average``."""


def average_parser() -> Parser:
    """Return the parser of ``average``."""
    parser = Parser(
        prog="norm-plugin average",
        description="Average the weights of several checkpoints of one run.",
        example="norm-plugin average --inputs checkpoints --last-epochs 5 --output averaged.pt",
    )
    add = parser.add_argument
    text = "one checkpoint folder, or the files to average"
    add("--inputs", nargs="+", type=existing, required=True, metavar="PATH", help=text)
    add("--output", type=Path, required=True, help="the checkpoint to write")
    last = parser.add_mutually_exclusive_group().add_argument
    text = "average the last N of checkpoint<EPOCH>.pt in the folder"
    last("--last-epochs", type=at_least(1), metavar="N", help=text)
    text = "average the last N of checkpoint_<EPOCH>_<UPDATES>.pt in the folder"
    last("--last-updates", type=at_least(1), metavar="N", help=text)
    text = "exclude epochs or updates after this number"
    add("--upper-bound", type=at_least(1), metavar="N", help=text)
    text = "running statistics of the norms: their mean (default), or those of the newest input"
    add("--running-stats", choices=MODES, default="average", help=text)
    add_user_dir(parser)
    return parser


def fold_parser() -> Parser:
    """Return the parser of ``fold``."""
    parser = Parser(
        prog="norm-plugin fold",
        description="Fold the norms of a checkpoint into the linear maps after them, to decode.",
        example="norm-plugin fold averaged.pt --output folded.pt",
    )
    add = parser.add_argument
    add("checkpoint", type=existing, metavar="CHECKPOINT", help="the input")
    add("--output", type=Path, required=True, help="the checkpoint to write")
    text = "the binarized data, for its dictionaries (default: the folder of the run)"
    add("--data", type=existing, metavar="DIR", help=text)
    add_user_dir(parser)
    return parser


def repair_parser() -> Parser:
    """Return the parser of ``repair``."""
    parser = Parser(
        prog="norm-plugin repair",
        description="Replace a truncated checkpoint_last.pt and remove leftover temporary files; "
        "never while a training writes there, whose files it would remove.",
        example="norm-plugin repair checkpoints",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --save-dir of the run")
    return parser
