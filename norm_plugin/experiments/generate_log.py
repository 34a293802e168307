"""The log of fairseq-generate: its translations, their references, and the score it printed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from norm_plugin.commands.command_line import CommandError, DivergedError, read_lines
from norm_plugin.experiments.bleu import BLEU4

SENTENCE = re.compile(r"([TD])-(\d+)\t(.*)", re.ASCII)
LAST_LINE = re.compile(r"Generate (\S+) with beam=(\d+): (.*)", re.ASCII)
# The mark of a segment that was left in, and the flag of fairseq-generate that removes it.
SUBWORDS = {
    "subword-nmt": (re.compile(r"\S*@@(?!\S)"), "--remove-bpe"),
    "sentencepiece": (re.compile("\\S*\u2581\\S*"), "--remove-bpe=sentencepiece"),
}
AGAIN = "run fairseq-generate again"
# fairseq leaves out a last batch whose size is no multiple of 8, its default.
ALL = "with --required-batch-size-multiple 1, without which fairseq drops a smaller last batch"


@dataclass
class GenerateLog:
    """What a log of fairseq-generate says; sentences in the order of the corpus."""

    split: str
    beam: int
    printed: str  #: "BLEU4 = ...", the score as fairseq printed it
    references: list[str]  #: tokens after BPE removal
    hypotheses: list[str]  #: the best translation of each, tokens after BPE removal
    scored: list[int]  #: the numbers of the sentences in the order in which fairseq scored them


def read_generate_log(path: Path, subword: str = "subword-nmt") -> GenerateLog:
    """Read the log of one fairseq-generate run with --remove-bpe, for one of ``SUBWORDS``.

    Raises:
        CommandError: a log that is truncated, lacks a sentence, holds several runs, was scored
            otherwise than by fairseq's BLEU4, or still has BPE segments in it.
        DivergedError: a translation whose score is not finite.
    """
    references: dict[int, str] = {}
    hypotheses: dict[int, str] = {}
    ends: list[tuple[str, ...]] = []
    for line in read_lines(path):
        sentence, end = SENTENCE.fullmatch(line), LAST_LINE.fullmatch(line)
        if end:
            ends.append(end.groups())
        elif sentence and sentence[1] == "T":
            if int(sentence[2]) in references:
                raise CommandError(f"{path} has line T-{sentence[2]} twice; {AGAIN}")
            references[int(sentence[2])] = sentence[3]
        elif sentence:
            score, _, hypothesis = sentence[3].partition("\t")
            if not math.isfinite(float(score)):
                raise DivergedError(
                    f"{path}: the score of translation D-{sentence[2]} is {score}; the weights "
                    "have diverged"
                )
            # With --nbest there are several a sentence, the best first.
            hypotheses.setdefault(int(sentence[2]), hypothesis)
    if len(ends) != 1:
        problem = "holds several runs" if ends else "is truncated: it does not end with a score"
        raise CommandError(f"{path} {problem}; {AGAIN}")
    split, beam, printed = ends[0]
    if not BLEU4.fullmatch(printed):
        raise CommandError(f"{path} ends with {printed[:80]!r}, not with fairseq's BLEU4; {AGAIN}")
    numbers = range(max([*references, *hypotheses], default=-1) + 1)
    if not numbers:
        raise CommandError(f"{path} holds no translation; {AGAIN}, without --quiet")
    for kind, lines in (("reference T", references), ("translation D", hypotheses)):
        missing = [number for number in numbers if number not in lines]
        if missing:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise CommandError(f"{path} lacks {kind}-{missing[0]}{more}; {AGAIN} {ALL}")
    mark, flag = SUBWORDS[subword]
    for line in (*references.values(), *hypotheses.values()):
        segment = mark.search(line)
        if segment:
            raise CommandError(f"{path} holds the BPE segment '{segment[0]}'; {AGAIN} with {flag}")
    return GenerateLog(
        split,
        int(beam),
        printed,
        [references[number] for number in numbers],
        [hypotheses[number] for number in numbers],
        list(references),
    )
