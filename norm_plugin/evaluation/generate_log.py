"""The log of fairseq-generate: its translations, their references, and the score it printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from norm_plugin.evaluation._command import EvaluationError, read_lines

TARGET = re.compile(r"T-(\d+)\t(.*)")
HYPOTHESIS = re.compile(r"D-(\d+)\t[^\t]*\t(.*)")
LAST_LINE = re.compile(r"Generate (\S+) with beam=(\d+): (.*)")
BLEU4 = re.compile(
    r"BLEU4 = (?P<score>[\d.]+), (?P<precisions>[\d./]+) \(BP=(?P<brevity>[\d.]+), "
    r"ratio=(?P<ratio>[\d.]+), syslen=(?P<syslen>\d+), reflen=(?P<reflen>\d+)\)"
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


def read_generate_log(path: Path, subword: str = "subword-nmt") -> GenerateLog:
    """Read the log of one fairseq-generate run with --remove-bpe, for one of ``SUBWORDS``.

    Raises EvaluationError for a log that is truncated, lacks a sentence, holds several runs, was
    scored otherwise than by fairseq's BLEU4, or still has BPE segments in it.
    """
    references, hypotheses, results = _sentences(path)
    if len(results) != 1:
        problem = "holds several runs" if results else "is truncated: it does not end with a score"
        raise EvaluationError(f"{path} {problem}; {AGAIN}")
    _check_complete(path, references, hypotheses)
    _check_no_segments(path, subword, [*references.values(), *hypotheses.values()])
    split, beam, printed = results[0]
    if not BLEU4.fullmatch(printed):
        raise EvaluationError(f"{path} ends with '{printed}', not with fairseq's BLEU4; {AGAIN}")
    order = range(len(references))
    return GenerateLog(
        split, int(beam), printed, [references[i] for i in order], [hypotheses[i] for i in order]
    )


def _sentences(path: Path) -> tuple[dict[int, str], dict[int, str], list[tuple[str, ...]]]:
    """References and best translations by number, and (split, beam, score) of each last line."""
    references: dict[int, str] = {}
    hypotheses: dict[int, str] = {}
    results: list[tuple[str, ...]] = []
    for line in read_lines(path):
        target, hypothesis = TARGET.fullmatch(line), HYPOTHESIS.fullmatch(line)
        last = LAST_LINE.fullmatch(line)
        if target:
            if int(target.group(1)) in references:
                raise EvaluationError(f"{path} has line T-{target.group(1)} twice; {AGAIN}")
            references[int(target.group(1))] = target.group(2)
        elif hypothesis:
            # With --nbest there are several a sentence, the best first.
            hypotheses.setdefault(int(hypothesis.group(1)), hypothesis.group(2))
        elif last:
            results.append(last.groups())
    return references, hypotheses, results


def _check_complete(path: Path, references: dict[int, str], hypotheses: dict[int, str]) -> None:
    expected = set(range(max([*references, *hypotheses], default=-1) + 1))
    for kind, found in (("reference T", references), ("translation D", hypotheses)):
        missing = sorted(expected - set(found))
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise EvaluationError(f"{path} lacks {kind}-{missing[0]}{more}; {AGAIN} {ALL}")
    if not expected:
        raise EvaluationError(f"{path} holds no translation; {AGAIN}, without --quiet")


def _check_no_segments(path: Path, subword: str, lines: list[str]) -> None:
    if subword not in SUBWORDS:
        raise EvaluationError(f"subword is {subword!r}; choose from {', '.join(SUBWORDS)}")
    mark, flag = SUBWORDS[subword]
    for line in lines:
        for token in line.split():
            if mark.search(token):
                raise EvaluationError(
                    f"{path} holds the BPE segment '{token}'; {AGAIN} with {flag}"
                )
