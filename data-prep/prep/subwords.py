"""Learn and apply subword units: BPE by subword-nmt, as in the papers, and sentencepiece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path

import sentencepiece
from subword_nmt import learn_bpe as subword_nmt
from subword_nmt.apply_bpe import BPE

from norm_plugin.io.command_line import CommandError
from prep.files import file_digest, lines_of, report, write_lines

METHODS = ("subword-nmt", "sentencepiece")
MOST_CACHED_WORDS = 200_000  # per process; all words of WMT14 would take gigabytes
# sentencepiece keeps its training text in memory; for longer texts, every Nth line is used
MOST_TRAINING_LINES = 2_000_000

Segment = Callable[[list[str]], list[str]]


def words_of(line: str) -> list[str]:
    """Return the words of a line as subword-nmt defines them: separated by single spaces."""
    return [word for word in line.split(" ") if word]


# ---- learning -------------------------------------------------------------------------------


def count_words(paths: Iterable[Path]) -> Counter[str]:
    """Count the words in all files."""
    counts: Counter[str] = Counter()
    for line in chain.from_iterable(map(lines_of, paths)):
        counts.update(words_of(line))
    return counts


def learn_bpe(word_counts: Counter[str], codes: Path, merges: int) -> None:
    """Learn up to `merges` BPE operations and write them to `codes`."""
    if all(len(word) < 2 for word in word_counts):
        raise CommandError(
            "BPE joins letters of a word, but no word of the training text has two; check that "
            "it is the right text. Text without spaces between words needs --subword sentencepiece"
        )
    vocabulary = (f"{word} {count}" for word, count in word_counts.items())
    codes.parent.mkdir(parents=True, exist_ok=True)
    with open(codes, "w", encoding="utf-8", newline="\n") as stream:
        subword_nmt.learn_bpe(vocabulary, stream, merges, is_dict=True)
    learned = sum(1 for _ in lines_of(codes)) - 1  # the first line is the version
    report(f"learn BPE: {learned:,} merges from {len(word_counts):,} words")


def learn_bpe_of_types(word_counts: Counter[str], codes: Path, types: int) -> None:
    """Write to `codes` the largest number of operations with at most `types` types of subwords.

    A merge adds one type and may remove two others, so the number is found by bisection.
    """
    learn_bpe(word_counts, codes, 2 * types)
    lines = list(lines_of(codes))
    fewest, most = 0, len(lines) - 1
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if _count_types(word_counts, codes, middle) <= types:
            fewest = middle
        else:
            most = middle - 1
    count = _count_types(word_counts, codes, fewest)
    if count > types:
        raise CommandError(f"{types:,} types are too few: the letters alone need {count:,}")
    write_lines(codes, lines[: fewest + 1])
    report(f"learn BPE: {fewest:,} merges give {count:,} types, at most {types:,} are allowed")


def _count_types(words: Iterable[str], codes: Path, merges: int) -> int:
    with open(codes, encoding="utf-8") as stream:
        bpe = BPE(stream, merges)
    return len({piece for word in words for piece in bpe.segment_tokens([word])})


def learn_sentencepiece(training: list[Path], model: Path, pieces: int) -> None:
    """Learn a BPE model of `pieces` pieces from raw text and write it to `model`."""
    total = sum(1 for path in training for _ in lines_of(path))
    step = -(-total // MOST_TRAINING_LINES)
    model.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(model, "wb") as stream:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=chain.from_iterable(
                    islice(lines_of(path), 0, None, step) for path in training
                ),
                model_writer=stream,
                vocab_size=pieces,
                model_type="bpe",
                character_coverage=1.0,
                num_threads=1,  # so that the model does not depend on the number of cores
                minloglevel=2,
            )
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CommandError(f"sentencepiece cannot learn {pieces:,} pieces: {reason}") from None
    report(f"learn sentencepiece: {pieces:,} pieces from {total:,} lines")


# ---- applying -------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _load(method: str, model: str, digest: str) -> Segment:
    """Return a function that segments by a model; `digest` only distinguishes cached models."""
    if method == "sentencepiece":
        processor = sentencepiece.SentencePieceProcessor(model_file=model)
        return lambda lines: [" ".join(line) for line in processor.encode(lines, out_type=str)]
    with open(model, encoding="utf-8") as stream:
        bpe = BPE(stream)

    @lru_cache(MOST_CACHED_WORDS)
    def pieces(word: str) -> str:
        bpe.cache.clear()  # replaced by this cache
        return " ".join(bpe.segment_tokens([word]))

    return lambda lines: [" ".join(map(pieces, words_of(line))) for line in lines]


def _segment_lines(lines: list[str], method: str, model: str, digest: str) -> list[str]:
    return _load(method, model, digest)(lines)


def segmenter(method: str, model: Path) -> Segment:
    """Return a picklable function that segments lines by a model."""
    return partial(_segment_lines, method=method, model=str(model), digest=file_digest(model))
