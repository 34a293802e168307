"""BLEU of translations, as fairseq computes it, by its definition and by sacrebleu; and chrF."""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_lab.metrics.base import Metric, Scores, register_metric
from norm_lab.run.flags import Configuration
from norm_plugin.checkpoints.fairseq_input import load_dictionary
from norm_plugin.io.command_line import CommandError, DivergedError, Parser
from norm_plugin.io.files import read_json, read_lines


@register_metric("bleu")
class Bleu(Metric):
    """BLEU of the average of the last checkpoints, translated by fairseq-generate."""

    title = "BLEU"
    headline = "tokenized"
    columns = {
        "tokenized": "BLEU (tokenized)",
        "exact": "exact BLEU",
        "sacrebleu": "sacrebleu",
        "chrf": "chrF",
    }
    units = {"chrf": "chrF"}
    of_interest = 0.2
    score_unit = "BLEU"
    loss_unit = "bits per token"
    stage = "generate"
    module = "fairseq_cli.generate"
    has_item_outputs = True
    item = ("H-", "sentences")

    def flags(self, subword: str, config: Configuration) -> list[str]:
        undo = f"--remove-bpe={subword}" if subword else "--remove-bpe"
        return [undo, "--required-batch-size-multiple", "1", *super().flags(subword, config)]

    def evaluate(self, argv: Sequence[str], log: Path) -> Path:
        """Run fairseq-generate; return its log."""
        from fairseq_cli import generate

        sys.argv = [self.module, *argv]
        generate.cli_main()
        return log

    def scores(self, log: Path, data: Path, split: str) -> Scores:
        """Score against the original text, or the tokenized text if the corpus has no raw/."""
        manifest = read_json(data / "manifest.json")
        language = manifest.get("target")
        if not language:
            raise CommandError(f"{data / 'manifest.json'} does not name the target language")
        reference = reference_file(data, split, language)
        dictionary = data / "bin" / f"dict.{language}.txt"
        scores = score_log(log, reference, text_form(manifest), dictionary)
        scores["sacrebleu"]["reference"] = f"{reference.parent.name}/{reference.name}"
        return scores

    def item_outputs(self, log: Path, data: Path) -> Sequence[str]:
        """Return the translations as sacrebleu scores them, one line per sentence."""
        form = text_form(read_json(data / "manifest.json"))
        return plain_hypotheses(read_generate_log(log, form.subword), form)


def reference_file(data: Path, split: str, language: str) -> Path:
    """Return the text that translations of a prepared corpus are scored against."""
    folder = "raw" if (data / "raw").is_dir() else "tok"
    return data / folder / f"{split}.{language}"


def text_form(manifest: dict[str, Any]) -> TextForm:
    """Return how the translations of a prepared corpus are scored, from its manifest."""
    settings, scoring = manifest.get("settings") or {}, manifest.get("scoring") or []
    return TextForm(
        manifest["target"],
        lowercase=bool(settings.get("lowercase")),
        subword=settings.get("subword", "subword-nmt"),
        tokenized_reference="tokenized_reference" in scoring,
        compound_split="compound_split" in scoring,
    )


# --- the output of fairseq-generate --------------------------------------------------------------

SENTENCE = re.compile(r"([TD])-(\d+)\t(.*)", re.ASCII)
LAST_LINE = re.compile(r"Generate (\S+) with beam=(\d+): (.*)", re.ASCII)
# A pattern for words with BPE segments, and the flag of fairseq-generate that joins them.
SUBWORDS = {
    "subword-nmt": (re.compile(r"\S*@@(?!\S)"), "--remove-bpe"),
    "sentencepiece": (re.compile("\\S*\u2581\\S*"), "--remove-bpe=sentencepiece"),
}
AGAIN = "run fairseq-generate again"
# fairseq's default is 8.
ALL = "with --required-batch-size-multiple 1, without which fairseq drops a smaller last batch"


@dataclass(frozen=True)
class TextForm:
    """The way in which the translations of a corpus are scored.

    Attributes:
        language: the target language, for the detokenizer.
        lowercase: compare without case, since the model was trained on lower-cased text.
        subword: one of ``SUBWORDS``; with sentencepiece the translations are plain text.
        tokenized_reference: the reference itself is tokenized, as in Stanford's IWSLT15.
        compound_split: also score with compounds split at hyphens.
    """

    language: str
    lowercase: bool = False
    subword: str = "subword-nmt"
    tokenized_reference: bool = False
    compound_split: bool = False


@dataclass
class GenerateLog:
    """The content of a log of fairseq-generate; sentences are in the order of the corpus."""

    split: str
    beam: int
    printed: str  #: "BLEU4 = ...", the score as fairseq printed it
    references: list[str]  #: tokens after BPE removal
    hypotheses: list[str]  #: the best translation of each, tokens after BPE removal
    scored: list[int]  #: the numbers of the sentences in the order in which fairseq scored them


def read_generate_log(path: Path, subword: str = "subword-nmt") -> GenerateLog:
    """Read the log of ``fairseq-generate --remove-bpe``.

    Raises:
        CommandError: the log is truncated, lacks a sentence, contains several runs, does not end
            with fairseq's BLEU4, or still has BPE segments.
        DivergedError: the score of a translation is not finite.
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
            # --nbest prints several for each sentence, the best first
            hypotheses.setdefault(int(sentence[2]), hypothesis)
    if len(ends) != 1:
        problem = "has several runs" if ends else "is truncated: it does not end with a score"
        raise CommandError(f"{path} {problem}; {AGAIN}")
    split, beam, printed = ends[0]
    if not BLEU4.fullmatch(printed):
        raise CommandError(f"{path} ends with {printed[:80]!r}, not with fairseq's BLEU4; {AGAIN}")
    numbers = range(max([*references, *hypotheses], default=-1) + 1)
    if not numbers:
        raise CommandError(f"{path} has no translation; {AGAIN}, without --quiet")
    for kind, lines in (("reference T", references), ("translation D", hypotheses)):
        missing = [number for number in numbers if number not in lines]
        if missing:
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise CommandError(f"{path} lacks {kind}-{missing[0]}{more}; {AGAIN} {ALL}")
    mark, flag = SUBWORDS[subword]
    for line in (*references.values(), *hypotheses.values()):
        segment = mark.search(line)
        if segment:
            raise CommandError(f"{path} has the BPE segment '{segment[0]}'; {AGAIN} with {flag}")
    return GenerateLog(
        split,
        int(beam),
        printed,
        [references[number] for number in numbers],
        [hypotheses[number] for number in numbers],
        list(references),
    )


def score_log(
    log_path: Path, reference: Path, form: TextForm, dictionary: Path | None = None
) -> dict[str, Any]:
    """Return the scores of a log of fairseq-generate: ``{"tokenized": ..., "exact": ..., ...}``.

    Args:
        reference: the original target text, one sentence per line.
        dictionary: ``dict.<language>.txt`` of the target side.
    """
    log = read_generate_log(log_path, form.subword)
    references = read_lines(reference)
    if len(references) != len(log.hypotheses):
        raise CommandError(
            f"{log_path} has {len(log.hypotheses)} translations, but {reference} has "
            f"{len(references)} lines; if that is the raw text of '{log.split}', {AGAIN} {ALL}"
        )

    def label(what: str) -> str:
        return f"{what}, {log.split}, beam {log.beam}{', lower-cased' if form.lowercase else ''}"

    tokens = "tokens after BPE removal"
    if form.subword == "sentencepiece":
        tokens = "words of plain text, not tokenized, which is not the papers' score"
    scores: dict[str, Any] = {
        "tokenized": {
            **bleu4_parts(log.printed),
            "label": label(f"fairseq BLEU4 on {tokens}"),
        },
        "exact": {
            **exact_bleu(log.references, log.hypotheses),
            "label": label(f"exact BLEU on {tokens}"),
        },
    }
    if dictionary is not None:
        computed = fairseq_bleu(
            [log.references[i] for i in log.scored],
            [log.hypotheses[i] for i in log.scored],
            dictionary,
        )
        scores["tokenized"] |= bleu4_parts(computed)
        if computed != log.printed:
            scores["tokenized"]["note"] = (
                f"fairseq-generate printed '{log.printed}', but its sentences give '{computed}'"
            )
    if form.compound_split:
        split_references = [split_compounds(line) for line in log.references]
        split_hypotheses = [split_compounds(line) for line in log.hypotheses]
        scores["compound_split"] = {
            **bleu4_parts(fairseq_bleu(split_references, split_hypotheses)),
            "exact": exact_bleu(split_references, split_hypotheses)["score"],
            "label": label("fairseq BLEU4 on tokens after BPE removal, compounds split"),
        }
    what, hypotheses = "sacrebleu on detokenized text", plain_hypotheses(log, form)
    if form.tokenized_reference:
        what += ", the reference detokenized too, as it comes tokenized"
    plain = plain_references(references, form)
    scores["sacrebleu"] = {
        **score_sacrebleu(hypotheses, plain, form.lowercase, form.language),
        "label": label(what),
    }
    scores["chrf"] = {
        **score_chrf(hypotheses, plain, form.lowercase),
        "label": label(what.replace("sacrebleu", "chrF")),
    }
    return scores


def plain_hypotheses(log: GenerateLog, form: TextForm) -> Sequence[str]:
    """Return the translations as sacrebleu scores them, in plain text."""
    if form.subword != "sentencepiece" or form.tokenized_reference:
        return detokenize(log.hypotheses, form.language)
    return log.hypotheses


def plain_references(references: Sequence[str], form: TextForm) -> Sequence[str]:
    """Return the original text as sacrebleu scores against it, detokenized if it is tokenized."""
    return detokenize(references, form.language) if form.tokenized_reference else references


def main(argv: Sequence[str]) -> int:
    """Print each kind of BLEU that papers report, and chrF, as JSON.

    - tokenized: fairseq's own BLEU4 on tokens after BPE removal, as the papers report it, computed
      from the sentences with the dictionary that fairseq-generate had. A note says if the log ends
      with a different score. Without a dictionary, the score in the log is used.
    - exact: BLEU of the same tokens by its definition. fairseq's BLEU can differ, because some
      different n-grams have the same hash.
    - compound_split, if requested: fairseq's BLEU4 after a-b has become a ##AT##-##AT## b on both
      sides, as the papers report it on WMT14 En-De.
    - sacrebleu on detokenized text against the original reference, with its signature.
    - chrF of the same text (Popovic 2015), which depends less on the length than BLEU.
    """
    parser = Parser(
        prog="norm-plugin score",
        description=inspect.cleandoc(main.__doc__ or ""),
        example="""norm-plugin score --generate-log test.log --target-lang de --lowercase \\
          --reference work/data/multi30k-2000/raw/test.de""",
    )
    add = parser.add_argument
    text = "the output of fairseq-generate --remove-bpe"
    add("--generate-log", type=Path, required=True, metavar="FILE", help=text)
    text = "the original target text, one sentence per line"
    add("--reference", type=Path, required=True, metavar="FILE", help=text)
    text = "dict.<language>.txt of the target side (default: none)"
    add("--dictionary", type=Path, metavar="FILE", help=text)
    add("--target-lang", required=True, help="language to detokenize, as 'de'")
    text = "compare without case (models of lower-cased text)"
    add("--lowercase", action="store_true", help=text)
    text = "the reference is tokenized text; detokenize it too"
    add("--tokenized-reference", action="store_true", help=text)
    text = "also score with compounds split at hyphens (WMT14 En-De)"
    add("--compound-split", action="store_true", help=text)
    text = "default: %(default)s"
    add("--subword", choices=list(SUBWORDS), default="subword-nmt", help=text)
    args = parser.parse_args(argv)
    options = (args.lowercase, args.subword, args.tokenized_reference, args.compound_split)
    form = TextForm(args.target_lang, *options)
    scores = score_log(args.generate_log, args.reference, form, args.dictionary)
    print(json.dumps(scores, indent=2, ensure_ascii=False))
    return 0


# --- three kinds of BLEU -------------------------------------------------------------------------
#
# fairseq's scorer compares n-grams by a hash of their word numbers, and different n-grams can have
# the same hash: between the reference (126, 250) and the hypothesis (128, 4) it finds one common
# bigram, and no common word. So its BLEU depends on the numbers of the words, and equals that of
# fairseq-generate only with the same dictionary.

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
    """Return the line that fairseq's scorer prints for sentences of space-separated tokens.

    Args:
        references: in the order of scoring, since words that the dictionary lacks are numbered in
            order of occurrence.
        dictionary: the file ``dict.<language>.txt`` of the target side gives what
            fairseq-generate prints; without one, words are numbered as by fairseq-score.
    """
    from fairseq.data import Dictionary
    from fairseq.scoring.bleu import BleuConfig, Scorer

    vocabulary = Dictionary() if dictionary is None else load_dictionary(dictionary)
    scorer = Scorer(BleuConfig(pad=vocabulary.pad(), eos=vocabulary.eos(), unk=vocabulary.unk()))
    for reference, hypothesis in zip(references, hypotheses):
        # In this order: fairseq-generate and fairseq-score number the words of the reference first.
        scorer.add(vocabulary.encode_line(reference), vocabulary.encode_line(hypothesis))
    line: str = scorer.result_string()
    return line


def bleu4_parts(line: str) -> dict[str, Any]:
    """Return the numbers of a line ``BLEU4 = ...``."""
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
    """Return BLEU of space-separated tokens by its definition (Papineni et al. 2002), by sacrebleu.

    No smoothing, no tokenization; an unknown word of a reference matches nothing, as in fairseq.
    """
    from sacrebleu.metrics import BLEU

    references = [
        " ".join("<<unk>>" if token == "<unk>" else token for token in line.split())
        for line in references
    ]
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return _sacrebleu_parts(metric, hypotheses, references)


WITHOUT_SPACES = {"zh": "zh", **dict.fromkeys(("ja", "km", "lo", "my", "th"), "char")}
"""sacrebleu's tokenizer for languages without spaces between words, of which its default would take
a sentence for one word. That for Japanese words, ja-mecab, needs another package."""


def sacrebleu_tokenizer(language: str) -> str | None:
    """Return sacrebleu's tokenizer for a language, as ``zh`` or ``zh_CN``; None: its default."""
    return WITHOUT_SPACES.get(re.split("[-_]", language)[0])


def score_sacrebleu(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool, language: str = ""
) -> dict[str, Any]:
    """Return sacrebleu's corpus BLEU of plain text, with its signature.

    ``lowercase`` compares without case, for models of lower-cased text; the signature says so, and
    names the tokenizer.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=lowercase, tokenize=sacrebleu_tokenizer(language))
    return _sacrebleu_parts(metric, hypotheses, references)


def score_chrf(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool
) -> dict[str, Any]:
    """Return sacrebleu's chrF2 of plain text (Popovic 2015, 2016), with its signature."""
    from sacrebleu.metrics import CHRF

    metric = CHRF(lowercase=lowercase)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return {"score": round(score.score, 4), "signature": str(metric.get_signature())}


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
    """Change ``a-b`` to ``a ##AT##-##AT## b``, as in the scores of the papers on WMT14 En-De.

    In ``a-b-c`` only the first hyphen is split: a letter between two hyphens counts for one.
    """
    return HYPHEN.sub(r"\1 ##AT##-##AT## \2", line)


def detokenize(lines: Sequence[str], language: str) -> list[str]:
    """Undo Moses tokenization, its XML escapes included."""
    from sacremoses import MosesDetokenizer

    detokenizer = MosesDetokenizer(language)
    return [detokenizer.detokenize(line.split(), unescape=True) for line in lines]
