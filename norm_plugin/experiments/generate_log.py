"""The log of fairseq-generate: its translations, their references, and the score it printed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from norm_plugin.commands.command_line import CommandError, DivergedError, read_lines

# Eight digits and one hundred million sentences are more than any corpus has; int() of more digits
# than a few thousand is refused by Python.
TARGET = re.compile(r"T-([0-9]{1,8})\t(.*)")
HYPOTHESIS = re.compile(r"D-([0-9]{1,8})\t([^\t]*)\t(.*)")
SENTENCE = re.compile(r"[TD]-[^ \t]*\t")  # what begins so must be one of these two
LAST_LINE = re.compile(r"Generate (\S+) with beam=([0-9]{1,8}): (.*)")
_NUMBER = r"[0-9]{1,9}\.[0-9]{1,9}"
BLEU4 = re.compile(
    rf"BLEU4 = (?P<score>{_NUMBER}), (?P<precisions>{_NUMBER}(?:/{_NUMBER}){{3}}) "
    rf"\(BP=(?P<brevity>{_NUMBER}), ratio=(?P<ratio>{_NUMBER}), "
    r"syslen=(?P<syslen>[0-9]{1,15}), reflen=(?P<reflen>[0-9]{1,15})\)"
)
# The mark of a segment that was left in, and the flag of fairseq-generate that removes it.
SUBWORDS = {
    "subword-nmt": (re.compile(r"@@$"), "--remove-bpe"),
    "sentencepiece": (re.compile("\u2581"), "--remove-bpe=sentencepiece"),
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

    Raises CommandError for a log that is truncated, lacks a sentence, holds several runs or a
    translation whose score is no number, was scored otherwise than by fairseq's BLEU4, or still
    has BPE segments in it.
    """
    references, hypotheses, results = _sentences(path)
    if len(results) != 1:
        problem = "holds several runs" if results else "is truncated: it does not end with a score"
        raise CommandError(f"{path} {problem}; {AGAIN}")
    _check_complete(path, references, hypotheses)
    _check_no_segments(path, subword, [*references.values(), *hypotheses.values()])
    split, beam, printed = results[0]
    if not BLEU4.fullmatch(printed):
        raise CommandError(f"{path} ends with {printed[:80]!r}, not with fairseq's BLEU4; {AGAIN}")
    order = range(len(references))
    return GenerateLog(
        split,
        int(beam),
        printed,
        [references[i] for i in order],
        [hypotheses[i] for i in order],
        list(references),
    )


def _sentences(path: Path) -> tuple[dict[int, str], dict[int, str], list[tuple[str, ...]]]:
    """References and best translations by number, and (split, beam, score) of each last line."""
    references: dict[int, str] = {}
    hypotheses: dict[int, str] = {}
    results: list[tuple[str, ...]] = []
    for number, line in enumerate(read_lines(path), 1):
        target, hypothesis = TARGET.fullmatch(line), HYPOTHESIS.fullmatch(line)
        last = LAST_LINE.fullmatch(line)
        if target:
            if int(target.group(1)) in references:
                raise CommandError(f"{path} has line T-{target.group(1)} twice; {AGAIN}")
            references[int(target.group(1))] = target.group(2)
        elif hypothesis:
            _check_finite(path, number, hypothesis.group(2))
            # With --nbest there are several a sentence, the best first.
            hypotheses.setdefault(int(hypothesis.group(1)), hypothesis.group(3))
        elif last:
            results.append(last.groups())
        elif SENTENCE.match(line):
            raise CommandError(
                f"{path}, line {number}: {line[:40]!r} does not begin as fairseq-generate's lines "
                f"of sentences do, T-NUMBER or D-NUMBER with a score; {AGAIN}"
            )
    return references, hypotheses, results


def _check_finite(path: Path, number: int, score: str) -> None:
    shown = f"{path}, line {number}: the score of a translation is {score[:40]!r}"
    try:
        finite = math.isfinite(float(score))
    except ValueError as error:
        raise CommandError(f"{shown}, not a number; {AGAIN}") from error
    if not finite:
        raise DivergedError(f"{shown}; the weights have diverged")


def _check_complete(path: Path, references: dict[int, str], hypotheses: dict[int, str]) -> None:
    count = max([*references, *hypotheses], default=-1) + 1
    if not count:
        raise CommandError(f"{path} holds no translation; {AGAIN}, without --quiet")
    for kind, found in (("reference T", references), ("translation D", hypotheses)):
        missing = count - len(found)
        if missing:
            first = next(i for i in range(count) if i not in found)
            more = f" and {missing - 1} more" if missing > 1 else ""
            raise CommandError(f"{path} lacks {kind}-{first}{more}; {AGAIN} {ALL}")


def _check_no_segments(path: Path, subword: str, lines: list[str]) -> None:
    if subword not in SUBWORDS:
        raise CommandError(f"subword is {subword!r}; choose from {', '.join(SUBWORDS)}")
    mark, flag = SUBWORDS[subword]
    for line in lines:
        for token in line.split():
            if mark.search(token):
                raise CommandError(f"{path} holds the BPE segment '{token}'; {AGAIN} with {flag}")
