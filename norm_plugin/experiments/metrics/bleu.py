"""BLEU of a translation: fairseq's, its exact form and sacrebleu's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError, read_json, read_lines
from norm_plugin.experiments.metrics.base import Metric, Scores, register_metric
from norm_plugin.experiments.score import (
    TextForm,
    plain_hypotheses,
    read_generate_log,
    score_log,
)


@register_metric("bleu")
class Bleu(Metric):
    """BLEU of the average of the last checkpoints, translated by fairseq-generate."""

    title = "BLEU"
    headline = "tokenized"
    columns = {
        "tokenized": "BLEU (tokenized)",
        "exact": "exact BLEU",
        "sacrebleu": "sacrebleu",
    }
    of_interest = 0.2
    score_unit = "BLEU"
    loss_unit = "bits a token"
    stage = "generate"
    module = "fairseq_cli.generate"
    keeps_texts = True
    item = ("H-", "sentences")

    def flags(self, subword: str, recipe: Sequence[str]) -> list[str]:
        undo = f"--remove-bpe={subword}" if subword else "--remove-bpe"
        return [undo, "--required-batch-size-multiple", "1", *recipe]

    def check_log(self, log: Path, data: Path) -> None:
        manifest = read_json(data / "manifest.json")
        translations = read_generate_log(log, text_form(manifest).subword).hypotheses
        text = data / "tok" / f"test.{manifest['target']}"
        sentences = len(read_lines(text))
        if len(translations) != sentences:
            raise CommandError(
                f"{log} holds {len(translations)} sentences, and {text} has {sentences}"
            )

    def scores(self, log: Path, data: Path, split: str) -> Scores:
        """Score against the original text; a corpus without raw/ has only the tokenized text."""
        manifest = read_json(data / "manifest.json")
        language = manifest.get("target")
        if not language:
            raise CommandError(f"{data / 'manifest.json'} does not name the target language")
        reference = reference_file(data, split, language)
        dictionary = data / "bin" / f"dict.{language}.txt"
        scores = score_log(log, reference, text_form(manifest), dictionary)
        scores["sacrebleu"]["reference"] = f"{reference.parent.name}/{reference.name}"
        return scores

    def texts(self, log: Path, data: Path) -> Sequence[str]:
        """The translations as sacrebleu scores them, a line a sentence."""
        form = text_form(read_json(data / "manifest.json"))
        return plain_hypotheses(read_generate_log(log, form.subword), form)


def reference_file(data: Path, split: str, language: str) -> Path:
    """The text that translations of a prepared corpus are scored against."""
    folder = "raw" if (data / "raw").is_dir() else "tok"
    return data / folder / f"{split}.{language}"


def text_form(manifest: dict[str, Any]) -> TextForm:
    """How the translations of a prepared corpus are scored, as its file in data-prep/ declares."""
    settings, scoring = manifest.get("settings") or {}, manifest.get("scoring") or []
    return TextForm(
        manifest["target"],
        lowercase=bool(settings.get("lowercase")),
        subword=settings.get("subword", "subword-nmt"),
        tokenized_reference="tokenized_reference" in scoring,
        compound_split="compound_split" in scoring,
    )
