"""BLEU with the length penalty that scores best on the validation text.

The beam search of fairseq ends with ``beam`` finished translations of a sentence, and ranks them by
(sum of log probabilities) / length^penalty. The penalty takes no part in the search before, so one
search gives the translations of every penalty.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.metrics.base import Scores, register_metric
from norm_lab.metrics.bleu import Bleu, exact_bleu, fairseq_bleu
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_lines

PENALTIES = tuple(round(0.2 * step, 1) for step in range(1, 16))
"""The penalties that are compared: 0.2 to 3.0."""
CHOICE = re.compile(r"\| length penalty (\S+): .*")
LINE = re.compile(r"([TDP])-(\d+)\t(.*)", re.ASCII)


@register_metric("bleu_length")
class BleuOfBestLength(Bleu):
    """BLEU of the average of the last checkpoints, with a length penalty chosen on validation."""

    module = "norm_plugin translate"

    def evaluate(self, argv: Sequence[str], log: Path) -> Path:
        main(argv)
        return log

    def scores(self, log: Path, data: Path, split: str) -> Scores:
        scores = super().scores(log, data, split)
        choices = [match[1] for match in map(CHOICE.fullmatch, read_lines(log)) if match]
        if len(choices) != 1:
            raise CommandError(f"{log} names {len(choices)} length penalties; it must name one")
        for score in scores.values():
            score["label"] += f", length penalty {choices[0]} chosen on valid"
        return scores


@dataclass
class Translations:
    """The finished translations of a sentence: each has its text, log2 probability and length."""

    number: int
    reference: str
    candidates: list[tuple[str, float, int]]

    def best(self, penalty: float) -> tuple[str, float]:
        """Return the text of the highest score under a length penalty, and that score."""
        scored = [(text, total / length**penalty) for text, total, length in self.candidates]
        return max(scored, key=lambda candidate: candidate[1])


def read_translations(output: str, penalty: float) -> dict[int, Translations]:
    """Read the output of ``fairseq-generate --nbest``: the translations by number of the sentence.

    Args:
        penalty: the length penalty that the printed scores were divided by.
    """
    sentences: dict[int, Translations] = {}
    for line in output.split("\n"):  # splitlines() would also split at a U+2028 in a sentence
        match = LINE.fullmatch(line)
        if match is None:
            continue
        kind, number, rest = match[1], int(match[2]), match[3]
        if kind == "T":
            sentences[number] = Translations(number, rest, [])
        elif kind == "D":
            score, _, text = rest.partition("\t")
        else:  # P: a log probability for each token, the end of the sentence included
            length = len(rest.split())
            candidate = (text, float(score) * length**penalty, length)
            sentences[number].candidates.append(candidate)
    return sentences


def search(config: Any, split: str) -> list[Translations]:
    """Run fairseq-generate on a split; return the sentences in the order in which it prints them.

    Args:
        config: the whole configuration of fairseq-generate.
    """
    from fairseq_cli.generate import main as generate

    config = copy.deepcopy(config)
    config.dataset.gen_subset = split
    config.generation.nbest = config.generation.beam
    with contextlib.redirect_stdout(io.StringIO()) as output:
        generate(config)
    return list(read_translations(output.getvalue(), config.generation.lenpen).values())


def bleu_by_penalty(sentences: Sequence[Translations]) -> dict[float, float]:
    """Return exact BLEU of sentences of tokens for each length penalty."""
    references = [sentence.reference for sentence in sentences]
    return {
        penalty: exact_bleu(references, [each.best(penalty)[0] for each in sentences])["score"]
        for penalty in PENALTIES
    }


HELP = """usage: norm-plugin translate DATA --path CHECKPOINT [FLAGS OF fairseq-generate]

fairseq-generate with a length penalty chosen on validation: it translates the split `valid`, then
that of --gen-subset, and prints the latter as fairseq-generate does, with the penalty of the
highest BLEU on `valid` (of equal ones that nearest to 1). A line "| length penalty" names it.
`fairseq-generate --help` explains the flags.

example:
  norm-plugin translate work/data/toy/bin --path averaged.pt --beam 5 --remove-bpe"""


def main(argv: Sequence[str]) -> int:
    """Run the command ``translate``; see :data:`HELP`."""
    if {"-h", "--help"} & {*argv}:
        print(HELP)
        return 0
    from fairseq import options
    from fairseq.data.data_utils import infer_language_pair
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    import norm_plugin.models  # noqa: F401  fairseq does not import a --user-dir twice

    logging.basicConfig(level=logging.INFO)  # on stderr; fairseq's own is on the stdout of a search
    parser = options.get_generation_parser()
    parser.prog = "norm-plugin translate"
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, list(argv)))
    if config.generation.unnormalized:
        raise CommandError("--unnormalized has no length penalty to choose; drop it")
    bleu = bleu_by_penalty(search(config, "valid"))
    best = max(bleu, key=lambda penalty: (bleu[penalty], -abs(penalty - 1)))
    listed = ", ".join(f"{penalty} {score:.2f}" for penalty, score in bleu.items())
    print(f"| length penalty {best}: BLEU on valid is {listed}")
    split = config.dataset.gen_subset
    sentences = search(config, split)
    for sentence in sentences:
        text, score = sentence.best(best)
        print(f"T-{sentence.number}\t{sentence.reference}")
        print(f"H-{sentence.number}\t{score}\t{text}")
        print(f"D-{sentence.number}\t{score}\t{text}")
    data = config.task.data
    target = config.task.target_lang or infer_language_pair(data)[1]
    references = [sentence.reference for sentence in sentences]
    texts = [sentence.best(best)[0] for sentence in sentences]
    computed = fairseq_bleu(references, texts, Path(data) / f"dict.{target}.txt")
    print(f"Generate {split} with beam={config.generation.beam}: {computed}")
    return 0
