"""The BLEU scores that papers mix up: fairseq's, the same with compounds split, sacrebleu's."""

from __future__ import annotations

import re
from typing import Any, Sequence

from norm_plugin.evaluation.generate_log import BLEU4

# As perl's s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g does on bytes, where only ASCII holds white space.
HYPHEN = re.compile(r"(\S)-(\S)", re.ASCII)


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


def bleu4_parts(line: str) -> dict[str, Any]:
    """The numbers of a line ``BLEU4 = ...``."""
    parts = BLEU4.fullmatch(line)
    if parts is None:
        raise ValueError(f"'{line}' is not fairseq's BLEU4")
    return {
        "score": float(parts["score"]),
        "precisions": [float(number) for number in parts["precisions"].split("/")],
        "brevity_penalty": float(parts["brevity"]),
        "length_ratio": float(parts["ratio"]),
        "system_length": int(parts["syslen"]),
        "reference_length": int(parts["reflen"]),
    }


def split_compounds(line: str) -> str:
    """``a-b`` becomes ``a ##AT##-##AT## b``, as in the scores of the papers on WMT14 En-De.

    Of ``a-b-c`` only the first hyphen is split: a letter between two hyphens serves one of them.
    """
    return HYPHEN.sub(r"\1 ##AT##-##AT## \2", line)


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
