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
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from norm_plugin.checkpoints.fairseq_input import fairseq_errors
from norm_plugin.io.command_line import CommandError, DivergedError


class Window(NamedTuple):
    """A window of the text: its number, its tokens, and the sum of their losses in bits."""

    number: int
    tokens: int
    bits: float


@dataclass
class Evaluation:
    """What the command computes.

    Attributes:
        bits: the mean loss per token.
        windows: in the order of evaluation.
        remarks: what the model says of its scores.
    """

    tokens: int = 0
    bits: float = math.nan
    seconds: float = 0.0
    windows: list[Window] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if {"-h", "--help"}.intersection(argv):
        print("usage: norm-plugin evaluate-lm DATA --path FILE [FLAGS]")
        print("FLAGS are those of fairseq-eval-lm; fairseq-eval-lm --help explains them.")
        print("With --windows, the loss of each window of the text is printed, too.")
        print("\nexample:")
        print("  norm-plugin evaluate-lm work/data/ptb/bin --path checkpoints/checkpoint_best.pt")
        return 0
    run(argv)
    return 0


def run(argv: Sequence[str]) -> Evaluation:
    """Run the command; return what it prints.

    Raises:
        DivergedError: the loss of a token is not finite.
    """
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
    evaluation = Evaluation()
    begin = int(getattr(args, "add_bos_token", False))  # which fairseq does not score
    scorer = recording_scorer(eval_lm.SequenceScorer, evaluation, begin)
    with (
        mock.patch.object(eval_lm, "SequenceScorer", scorer),
        fairseq_errors(f"evaluate {args.path} on the {args.gen_subset} text of {args.data}"),
    ):
        results = eval_lm.main(convert_namespace_to_omegaconf(args))
    evaluation.bits = float(results["loss"])
    tokens, seconds = evaluation.tokens, evaluation.seconds
    for remark in evaluation.remarks:
        print(f"Remark on the scores: {remark}")
    for window in evaluation.windows if args.windows else ():
        print(f"Window {window.number}: {window.tokens} tokens, {window.bits:.4f} bits")
    speed = f"{tokens / max(seconds, 1e-9):.2f} tokens/s"
    print(f"Evaluated {tokens:,} tokens in {seconds:.1f}s ({speed})")
    print(f"Loss (base 2): {evaluation.bits:.4f}, Perplexity: {results['perplexity']:.2f}")
    return evaluation


def recording_scorer(scorer: Any, evaluation: Evaluation, begin: int) -> Any:
    """Return a subclass of fairseq's scorer that adds what it scores to ``evaluation``.

    The first ``begin`` tokens of a window are left out.
    """

    class Scorer(scorer):
        def generate(self, models: Any, sample: Any, **settings: Any) -> Any:
            start = time.perf_counter()
            found = super().generate(models, sample, **settings)
            evaluation.seconds += time.perf_counter() - start
            evaluation.remarks = [model.remark for model in models if getattr(model, "remark", "")]
            for number, (best, *_) in zip(sample["id"], found):
                window = window_of(int(number), best["positional_scores"][begin:].tolist())
                evaluation.windows.append(window)
                evaluation.tokens += window.tokens
            return found

    return Scorer


def window_of(number: int, scores: Sequence[float]) -> Window:
    """Return a window from the log p of its tokens, rounded to six digits as fairseq prints them.

    Raises:
        DivergedError: a loss is not finite; fairseq would skip a token of probability 0, and the
            mean loss of the other tokens would be too low.
    """
    if not all(map(math.isfinite, scores)):
        raise DivergedError(
            "the probability of a token of the text is 0 or NaN: the model has diverged"
        )
    return Window(number, len(scores), sum(-round(score, 6) / math.log(2) for score in scores))


def user_dir_in(argv: Sequence[str]) -> Path | None:
    """Return the ``--user-dir`` of a command line, which fairseq imports while it parses."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--user-dir", type=Path)
    return parser.parse_known_args(list(argv))[0].user_dir
