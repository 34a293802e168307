"""What one corpus declares: its raw files, how its text is treated and how it is scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from prep.cleaning import Limits
from prep.fetch import Source
from prep.raw_files import RawFiles
from prep.text_rules import TextRules

Languages = tuple[str, str]  # source, target


class Choices(NamedTuple):
    """What the user chose on the command line."""

    languages: Languages
    subword: str
    tokenizer: str  # empty if the text comes tokenized or stays raw
    moses_dir: str
    merges: int | None


@dataclass(frozen=True)
class Corpus:
    """Everything in which one corpus differs from another."""

    name: str
    """The stem of the corpus's file in data-prep/."""
    languages: Languages
    sources: tuple[Source, ...]
    """The files to download."""
    raw: RawFiles
    """How the raw files are checked and read."""
    rules: TextRules
    """What is done to a raw line. Without a tokenizer the text is taken to come tokenized."""
    other_rules: dict[str, TextRules] = field(default_factory=dict)
    """Rules of a split, if they differ from those of the training text."""
    merges: int | None = None
    """Default number of BPE operations. None: as many as give the number of `types`."""
    types: dict[str, int] = field(default_factory=dict)
    """Size of each language's vocabulary in the paper, where `merges` is None."""
    joint: bool = True
    """One subword model and one dictionary for both languages."""
    clean_words: Limits | None = None
    """Which training pairs are kept, by their words."""
    clean_pieces: Limits | None = None
    """Which training pairs are kept, by their subword units."""
    valid_every: int = 0
    """Every Nth clean training pair is for validation instead; 0: validation has its own files."""
    compound_split: bool = False
    """The papers also report BLEU with compounds split at hyphens."""

    @property
    def scoring(self) -> list[str]:
        """What scoring must know of the corpus; `norm_plugin` reads it in the manifest."""
        facts = {
            "tokenized_reference": not self.rules.tokenizer,
            "compound_split": self.compound_split,
        }
        return [name for name, holds in facts.items() if holds]

    def rules_of(self, split: str, choices: Choices) -> TextRules:
        """The rules of a split under the user's choices; sentencepiece needs no tokenizer."""
        rules = self.other_rules.get(split, self.rules)
        if choices.subword == "sentencepiece":
            # Text that comes tokenized also comes with escapes, which only a detokenizer undoes.
            return rules._replace(tokenizer="", unescape=not rules.tokenizer)
        return rules._replace(tokenizer=choices.tokenizer, moses_dir=choices.moses_dir)
