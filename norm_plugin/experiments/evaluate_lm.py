"""``fairseq-eval-lm`` in one process, which prints its results on stdout and all else on stderr.

    norm-plugin evaluate-lm DATA --user-dir norm_plugin --path FILE

It takes the flags of ``fairseq-eval-lm`` and prints

    Evaluated 111,540 tokens in 6.1s (18267.76 tokens/s)
    Loss (base 2): 4.7682, Perplexity: 27.25
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from norm_plugin.commands.command_line import DivergedError

RESULTS = ("Evaluated ", "Loss (base 2): ")
LEFT_OUT = "skipping tokens with inf scores"


def main(argv: Sequence[str]) -> int:
    """The command line."""
    if {"-h", "--help"}.intersection(argv):
        print("usage: norm-plugin evaluate-lm DATA --path FILE [FLAGS]")
        print("FLAGS are those of fairseq-eval-lm; fairseq-eval-lm --help explains them.")
        return 0
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import eval_lm

    import norm_plugin.models  # noqa: F401  registers the models that checkpoints name

    parser = options.get_eval_lm_parser()
    parser.prog = "norm-plugin evaluate-lm"
    args = options.parse_args_and_arch(parser, list(argv))
    results = logging.StreamHandler(sys.stdout)
    results.addFilter(is_result)
    eval_lm.logger.setLevel(logging.INFO)
    eval_lm.logger.addHandler(results)
    try:
        eval_lm.main(convert_namespace_to_omegaconf(args))
    finally:
        eval_lm.logger.removeHandler(results)
    return 0


def is_result(record: logging.LogRecord) -> bool:
    """Whether a message of fairseq's is one of the results.

    Raises DivergedError for the message that tokens of probability 0 are left out: the loss
    of the others alone would look better than that of any model.
    """
    if str(record.msg).startswith(LEFT_OUT):
        raise DivergedError("a token of the text has probability 0: the model has diverged")
    return record.getMessage().startswith(RESULTS)
