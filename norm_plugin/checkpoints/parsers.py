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
    parser.add_argument(
        "--inputs",
        nargs="+",
        type=existing,
        required=True,
        metavar="PATH",
        help="one checkpoint folder, or the files to average",
    )
    parser.add_argument("--output", type=Path, required=True, help="the checkpoint to write")
    last = parser.add_mutually_exclusive_group()
    last.add_argument(
        "--last-epochs",
        type=at_least(1),
        metavar="N",
        help="average the last N of checkpoint<EPOCH>.pt in the folder",
    )
    last.add_argument(
        "--last-updates",
        type=at_least(1),
        metavar="N",
        help="average the last N of checkpoint_<EPOCH>_<UPDATES>.pt in the folder",
    )
    parser.add_argument(
        "--upper-bound",
        type=at_least(1),
        metavar="N",
        help="exclude epochs or updates after this number",
    )
    parser.add_argument(
        "--running-stats",
        choices=MODES,
        default="average",
        help="running statistics of the norms: their mean (default), or those of the newest input",
    )
    add_user_dir(parser)
    return parser


def fold_parser() -> Parser:
    """Return the parser of ``fold``."""
    parser = Parser(
        prog="norm-plugin fold",
        description="Fold the norms of a checkpoint into the linear maps after them, to decode.",
        example="norm-plugin fold averaged.pt --output folded.pt",
    )
    parser.add_argument("checkpoint", type=existing, metavar="CHECKPOINT", help="the input")
    parser.add_argument("--output", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument(
        "--data",
        type=existing,
        metavar="DIR",
        help="the binarized data, for its dictionaries (default: the folder of the run)",
    )
    add_user_dir(parser)
    return parser


def repair_parser() -> Parser:
    """Return the parser of ``repair``."""
    parser = Parser(
        prog="norm-plugin repair",
        description="Replace a truncated checkpoint_last.pt and remove leftover temporary files.",
        example="norm-plugin repair checkpoints",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the --save-dir of the run")
    return parser
