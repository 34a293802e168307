"""Compute the loss of a language model on a text.

``norm-plugin evaluate-lm`` is ``fairseq-eval-lm`` in one process, with the same flags. It prints
the results on stdout and everything else on stderr:

    Evaluated 111,540 tokens in 6.1s (18267.76 tokens/s)
    Loss (base 2): 4.7682, Perplexity: 27.25

With ``--windows`` it prints the loss of each window of the text, too, in the order of evaluation:

    Window 17: 64 tokens, 297.8215 bits
"""

from __future__ import annotations

import argparse
import ast
import logging
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from norm_plugin.checkpoints.fairseq_input import fairseq_errors
from norm_plugin.io.command_line import CommandError, DivergedError

REMARK = "Remark on the scores: "  # that of norm_plugin.models, which imports torch
RESULTS = ("Evaluated ", "Loss (base 2): ", "Window ", REMARK)
LEFT_OUT = "skipping tokens with inf scores"
WORDS = re.compile(r"(\d+) (.*\[-?\d+\.\d+\])", re.DOTALL)
"""What --output-word-probs prints of a window: its number, and each word with its log p."""
LOG_P = re.compile(r"\[(-?\d+\.\d+)\](?=\t|$)")


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if {"-h", "--help"}.intersection(argv):
        print("usage: norm-plugin evaluate-lm DATA --path FILE [FLAGS]")
        print("FLAGS are those of fairseq-eval-lm; fairseq-eval-lm --help explains them.")
        print("With --windows, the loss of each window of the text is printed, too.")
        return 0
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import eval_lm

    import norm_plugin.models  # noqa: F401  registers the models that checkpoints name
    from norm_plugin.io.user_dirs import import_user_dir

    parser = options.get_eval_lm_parser()
    parser.prog = "norm-plugin evaluate-lm"
    parser.add_argument("--windows", action="store_true", help="print the loss of each window")
    import_user_dir(user_dir_in(argv))
    args = options.parse_args_and_arch(parser, list(argv))
    if args.path is None:
        raise CommandError("--path is missing; give the checkpoint: --path FILE")
    check_overrides(args.model_overrides)
    if args.windows:
        args.output_word_probs = True
        eval_lm.logger.addFilter(sum_window)
    results = ResultHandler(sys.stdout)
    results.addFilter(is_result)
    loggers = (eval_lm.logger, logging.getLogger("norm_plugin.models"))
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(results)
    try:
        with fairseq_errors(f"evaluate {args.path} on the {args.gen_subset} text of {args.data}"):
            eval_lm.main(convert_namespace_to_omegaconf(args))
    finally:
        for logger in loggers:
            logger.removeHandler(results)
        eval_lm.logger.removeFilter(sum_window)
    return 0


class ResultHandler(logging.StreamHandler):
    """Writes the results; an error while writing ends the command."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Raise the current error; logging would print it and continue."""
        raise


def check_overrides(text: str) -> None:
    """Raise CommandError unless ``--model-overrides``, which fairseq evaluates, is a literal."""
    try:
        overrides = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        overrides = None
    if not isinstance(overrides, dict):
        raise CommandError(
            f"--model-overrides is {text[:60]!r}; it must be a dictionary of literals, such as "
            "{'dropout': 0.1}"
        )


def user_dir_in(argv: Sequence[str]) -> Path | None:
    """Return the ``--user-dir`` of a command line, which fairseq imports while it parses."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--user-dir", type=Path)
    return parser.parse_known_args(list(argv))[0].user_dir


def is_result(record: logging.LogRecord) -> bool:
    """Return whether a log message of fairseq is one of the results.

    Raises:
        DivergedError: the message says that tokens of probability 0 are skipped; the mean loss of
            the other tokens would be too low.
    """
    if str(record.msg).startswith(LEFT_OUT):
        raise DivergedError("a token of the text has probability 0: the model has diverged")
    return record.getMessage().startswith(RESULTS)


def sum_window(record: logging.LogRecord) -> bool:
    """Replace the words of a window in a log message of fairseq by their number and their loss."""
    match = WORDS.fullmatch(record.getMessage())
    if match is not None:
        losses = [-float(value) / math.log(2) for value in LOG_P.findall(match[2])]
        record.msg = f"Window {match[1]}: {len(losses)} tokens, {sum(losses):.4f} bits"
    return True
