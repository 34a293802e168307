"""Score the output of fairseq-generate: tokenised BLEU and sacrebleu.

    python -m norm_plugin.evaluation.score --generate-log LOG --reference RAW --target-lang de

Two figures, never one without the other:

- fairseq's own BLEU4 on tokens after BPE removal, as the papers report it. It is read from the last
  line of the log and computed again from the sentences; a difference is an error.
- sacrebleu on detokenised text against the untouched reference, with its signature.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

from norm_plugin.evaluation._command import EvaluationError, read_lines, run_command

TARGET = re.compile(r"T-(\d+)\t(.*)")
HYPOTHESIS = re.compile(r"D-(\d+)\t[^\t]*\t(.*)")
LAST_LINE = re.compile(r"Generate (\S+) with beam=(\d+): (.*)")
BLEU4 = re.compile(
    r"BLEU4 = (?P<score>[\d.]+), (?P<precisions>[\d./]+) \(BP=(?P<brevity>[\d.]+), "
    r"ratio=(?P<ratio>[\d.]+), syslen=(?P<syslen>\d+), reflen=(?P<reflen>\d+)\)"
)
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


def read_generate_log(path: Path, bpe_separator: str = "@@") -> GenerateLog:
    """Read the log of one fairseq-generate run with --remove-bpe.

    Raises EvaluationError for a log that is truncated, lacks a sentence, holds several runs, was
    scored otherwise than by fairseq's BLEU4, or still has BPE segments in it.
    """
    references, hypotheses, results = _sentences(path)
    if len(results) != 1:
        problem = "holds several runs" if results else "is truncated: it does not end with a score"
        raise EvaluationError(f"{path} {problem}; {AGAIN}")
    _check_complete(path, references, hypotheses)
    _check_no_bpe(path, bpe_separator, [*references.values(), *hypotheses.values()])
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


def _check_no_bpe(path: Path, separator: str, lines: list[str]) -> None:
    for line in lines:
        for token in line.split():
            if separator and token.endswith(separator):
                raise EvaluationError(
                    f"{path} holds the BPE segment '{token}'; {AGAIN} with --remove-bpe, "
                    "or name the right --bpe-separator"
                )


def score_tokenised(log: GenerateLog) -> dict[str, Any]:
    """fairseq's BLEU4 of a log, checked by computing it again from the sentences."""
    computed = fairseq_bleu(log.references, log.hypotheses)
    if computed != log.printed:
        raise EvaluationError(
            f"fairseq-generate printed '{log.printed}' and its sentences give '{computed}'; {AGAIN}"
        )
    parts = BLEU4.fullmatch(log.printed)
    assert parts is not None  # read_generate_log has checked it
    return {
        "score": float(parts["score"]),
        "precisions": [float(number) for number in parts["precisions"].split("/")],
        "brevity_penalty": float(parts["brevity"]),
        "length_ratio": float(parts["ratio"]),
        "system_length": int(parts["syslen"]),
        "reference_length": int(parts["reflen"]),
        "label": f"fairseq BLEU4 on tokens after BPE removal, {log.split}, beam {log.beam}",
    }


def fairseq_bleu(references: Sequence[str], hypotheses: Sequence[str]) -> str:
    """The line that fairseq's scorer prints for sentences of space-separated tokens."""
    from fairseq.data import Dictionary
    from fairseq.scoring.bleu import BleuConfig, Scorer

    words = Dictionary()
    scorer = Scorer(BleuConfig(pad=words.pad(), eos=words.eos(), unk=words.unk()))
    for reference, hypothesis in zip(references, hypotheses):
        scorer.add(words.encode_line(reference), words.encode_line(hypothesis))
    line: str = scorer.result_string()
    return line


def detokenise(lines: Sequence[str], language: str) -> list[str]:
    """Undo Moses tokenisation, its XML escapes included."""
    from sacremoses import MosesDetokenizer

    detokeniser = MosesDetokenizer(language)
    return [detokeniser.detokenize(line.split(), unescape=True) for line in lines]


def score_sacrebleu(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool
) -> dict[str, Any]:
    """sacrebleu's corpus BLEU of plain text, with its signature.

    ``lowercase`` compares without case, for models of lower-cased text; the signature says so.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=lowercase)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return {
        "score": round(score.score, 4),
        "precisions": [round(number, 4) for number in score.precisions],
        "brevity_penalty": round(score.bp, 4),
        "signature": str(metric.get_signature()),
    }


def score_log(
    log_path: Path, reference: Path, language: str, lowercase: bool, bpe_separator: str = "@@"
) -> dict[str, Any]:
    """Both scores, ``{"tokenised": ..., "sacrebleu": ...}``, of a log of fairseq-generate.

    ``reference`` is the untouched text of the target side, a sentence a line, in corpus order.
    """
    log = read_generate_log(log_path, bpe_separator)
    references = read_lines(reference)
    if len(references) != len(log.hypotheses):
        raise EvaluationError(
            f"{log_path} holds {len(log.hypotheses)} translations and {reference} "
            f"{len(references)} lines; if that is the raw text of '{log.split}', {AGAIN} {ALL}"
        )
    tokenised = score_tokenised(log)
    if lowercase:
        tokenised["label"] += ", lower-cased"
    return {
        "tokenised": tokenised,
        "sacrebleu": score_sacrebleu(detokenise(log.hypotheses, language), references, lowercase),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; prints both scores as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin.evaluation.score",
        description="Score the output of fairseq-generate by fairseq's BLEU4 and by sacrebleu.",
    )
    parser.add_argument(
        "--generate-log",
        type=Path,
        required=True,
        metavar="FILE",
        help="what fairseq-generate --remove-bpe printed",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        required=True,
        metavar="FILE",
        help="the untouched target text, a sentence a line",
    )
    parser.add_argument("--target-lang", required=True, help="language to detokenise by, as 'de'")
    parser.add_argument(
        "--lowercase", action="store_true", help="compare without case (models of lower-cased text)"
    )
    parser.add_argument("--bpe-separator", default="@@", help="default: %(default)s")
    args = parser.parse_args(argv)
    scores = score_log(
        args.generate_log, args.reference, args.target_lang, args.lowercase, args.bpe_separator
    )
    print(json.dumps(scores, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    run_command(main)
