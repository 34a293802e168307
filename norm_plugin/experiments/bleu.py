"""Three kinds of BLEU: fairseq's, the exact one of the same tokens, and sacrebleu's.

fairseq's scorer compares n-grams by a hash of their word numbers, and different n-grams can have
the same hash: between the reference (126, 250) and the hypothesis (128, 4) it finds one common
bigram, and no common word. So its BLEU depends on the numbers of the words, and equals that of
fairseq-generate only with the same dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError

_NUMBER = r"\d+\.\d+"
BLEU4 = re.compile(
    rf"BLEU4 = (?P<score>{_NUMBER}), (?P<precisions>{_NUMBER}(?:/{_NUMBER}){{3}}) "
    rf"\(BP=(?P<brevity>{_NUMBER}), ratio=(?P<ratio>{_NUMBER}), "
    r"syslen=(?P<syslen>\d+), reflen=(?P<reflen>\d+)\)"
)
# As perl's s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g does on bytes, where only ASCII holds white space.
HYPHEN = re.compile(r"(\S)-(\S)", re.ASCII)


def fairseq_bleu(
    references: Sequence[str], hypotheses: Sequence[str], dictionary: Path | None = None
) -> str:
    """The line that fairseq's scorer prints for sentences of space-separated tokens.

    Args:
        references: in the order in which they were scored, since words that the dictionary
            lacks get their numbers in the order in which they come.
        dictionary: the file ``dict.<language>.txt`` of the target side gives what
            fairseq-generate prints; without one words are numbered as by fairseq-score.

    Raises:
        CommandError: the dictionary cannot be read.
    """
    from fairseq.data import Dictionary
    from fairseq.scoring.bleu import BleuConfig, Scorer

    try:
        vocabulary = Dictionary() if dictionary is None else Dictionary.load(str(dictionary))
    except (OSError, ValueError, RuntimeError) as error:
        raise CommandError(f"cannot read the dictionary {dictionary}: {error}") from error
    scorer = Scorer(BleuConfig(pad=vocabulary.pad(), eos=vocabulary.eos(), unk=vocabulary.unk()))
    for reference, hypothesis in zip(references, hypotheses):
        # In this order: fairseq-generate and fairseq-score number the reference's words first.
        scorer.add(vocabulary.encode_line(reference), vocabulary.encode_line(hypothesis))
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


def exact_bleu(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, Any]:
    """BLEU of space-separated tokens by its definition (Papineni et al. 2002), by sacrebleu.

    No smoothing, no tokenization; an unknown word of a reference matches nothing, as in fairseq.
    """
    from sacrebleu.metrics import BLEU

    references = [
        " ".join("<<unk>>" if token == "<unk>" else token for token in line.split())
        for line in references
    ]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return _sacrebleu_parts(metric, hypotheses, references)


def score_sacrebleu(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool
) -> dict[str, Any]:
    """sacrebleu's corpus BLEU of plain text, with its signature.

    ``lowercase`` compares without case, for models of lower-cased text; the signature says so.
    """
    from sacrebleu.metrics import BLEU

    return _sacrebleu_parts(BLEU(lowercase=lowercase), hypotheses, references)


def _sacrebleu_parts(
    metric: Any, hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return {
        "score": round(score.score, 4),
        "precisions": [round(number, 4) for number in score.precisions],
        "brevity_penalty": round(score.bp, 4),
        "signature": str(metric.get_signature()),
    }


def split_compounds(line: str) -> str:
    """``a-b`` becomes ``a ##AT##-##AT## b``, as in the scores of the papers on WMT14 En-De.

    Of ``a-b-c`` only the first hyphen is split: a letter between two hyphens serves one of them.
    """
    return HYPHEN.sub(r"\1 ##AT##-##AT## \2", line)


def detokenize(lines: Sequence[str], language: str) -> list[str]:
    """Undo Moses tokenization, its XML escapes included."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(language)
    return [detokenizer.detokenize(line.split(), unescape=True) for line in lines]
