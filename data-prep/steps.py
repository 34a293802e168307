"""The steps that every corpus goes through: check, tokenise, BPE, binarise.

Each function reads files and writes files; none holds a whole corpus in memory. They write
straight into the folder they are given: `corpus.publish` makes that folder appear all at once.
Text is UTF-8 and a line ends at "\\n" and nowhere else, because characters such as U+2028
occur inside real sentences and would shift one side of a corpus against the other.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import multiprocessing
import re
import signal
import subprocess
import sys
import zlib
from collections import Counter
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List

from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt import learn_bpe as subword_learn
from subword_nmt.apply_bpe import BPE
from tqdm import tqdm

CHUNK_LINES = 2000
SPLITS = ("train", "valid", "test")

LinesFunction = Callable[[List[str]], List[str]]


class PrepError(Exception):
    """Bad input or settings; the message is the one line that the user reads."""


def report(message: str) -> None:
    """Print one line of progress to stderr, above a running progress bar."""
    tqdm.write(message, file=sys.stderr)


@contextmanager
def only_one_process(lock: Path, doing: str) -> Iterator[None]:
    """Hold the lock file `lock`, after waiting for whoever holds it; a kill releases it."""
    with open(lock, "w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another process is {doing}; waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


# ---- reading and checking -------------------------------------------------------------------


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file (plain or .gz) without their newline.

    Raises PrepError, naming the file and the line, where the file is missing, its gzip stream
    is cut or damaged, or a line is not UTF-8.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            for line in stream:
                number += 1
                yield line.rstrip(b"\n").decode("utf-8")
    except FileNotFoundError:
        raise PrepError(f"{path} is missing") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise PrepError(f"{path} is truncated or damaged after {number:,} lines: {error}") from None
    except UnicodeDecodeError as error:
        raise PrepError(f"{path}, line {number:,}, is not UTF-8: {error}") from None


def count_lines(path: Path) -> int:
    """Number of lines of a text file, plain or .gz."""
    return sum(1 for _ in read_lines(path))


def check_parallel(source: Path, target: Path, expected: int | None = None) -> int:
    """Check that both sides have the same number of lines, at least one, and return it.

    With `expected`, both must have exactly that number. Raises PrepError naming both files and
    both counts.
    """
    counts = count_lines(source), count_lines(target)
    found = f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}"
    if expected is not None and counts != (expected, expected):
        raise PrepError(f"{found}; {expected:,} are expected in each")
    if counts[0] != counts[1]:
        raise PrepError(f"{found}; line N of one must be the translation of line N of the other")
    if counts[0] == 0:
        raise PrepError(f"{source} and {target} are empty")
    return counts[0]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- transforming line by line --------------------------------------------------------------


class Workers:
    """Applies a function to chunks of lines, in order, in this process or in several."""

    def __init__(self, pool: Any | None) -> None:
        self._pool = pool

    def map(self, function: LinesFunction, chunks: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yield `function(chunk)` for each chunk, in the order of the chunks."""
        if self._pool is None:
            return map(function, chunks)
        iterator: Iterator[list[str]] = self._pool.imap(function, chunks)
        return iterator


@contextmanager
def start_workers(count: int) -> Iterator[Workers]:
    """Start `count` processes for `write_mapped`; with 1 everything stays in this process."""
    if count == 1:
        yield Workers(None)
        return
    # "spawn", so that the workers inherit no open file: a lock held here ends with us.
    with multiprocessing.get_context("spawn").Pool(count, _leave_interrupts_to_parent) as pool:
        yield Workers(pool)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def chunked(lines: Iterable[str], size: int = CHUNK_LINES) -> Iterator[list[str]]:
    """Cut an iterable of lines into lists of at most `size`."""
    iterator = iter(lines)
    while chunk := list(islice(iterator, size)):
        yield chunk


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each ended by "\\n"; parent folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        for line in lines:
            stream.write(line + "\n")


def write_mapped(
    function: LinesFunction, source: Path, target: Path, workers: Workers, label: str
) -> None:
    """Write `function` of the lines of `source` to `target`, in order, chunk by chunk."""
    results = workers.map(function, chunked(read_lines(source)))
    with tqdm(desc=label, unit=" lines", leave=False, disable=None) as bar:
        written = 0
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "w", encoding="utf-8", newline="\n") as stream:
            for lines in results:
                stream.writelines(line + "\n" for line in lines)
                bar.update(len(lines))
                written += len(lines)
    report(f"{label}: {written:,} lines")


# ---- tokenisation ---------------------------------------------------------------------------


class PerlMosesTokenizer(MosesTokenizer):
    """sacremoses, with the one rule of Moses' tokenizer.perl that it lacks.

    The full stop that ends a sentence is always its own token, also after an abbreviation or
    an initial: `U.S.A.` -> `U.S.A .`
    """

    def handles_nonbreaking_prefixes(self, text: str) -> str:
        """Split off full stops where they end a sentence; called by `tokenize`."""
        return re.sub(r"(?<=\S)\.$", " .", super().handles_nonbreaking_prefixes(text))


@lru_cache(maxsize=None)
def _moses(language: str) -> tuple[MosesPunctNormalizer, PerlMosesTokenizer]:
    return MosesPunctNormalizer(language), PerlMosesTokenizer(language)


def tokenise_lines(lines: list[str], language: str, lowercase: bool) -> list[str]:
    """Normalise punctuation, tokenise as Moses does (with its XML escapes), lower-case.

    The escapes (`&apos;` ...) are tokenizer.perl's default, on which the published tokenised
    BLEU rests; sacremoses' detokeniser undoes them.
    """
    normaliser, tokeniser = _moses(language)
    tokenised = (tokeniser.tokenize(normaliser.normalize(line), return_str=True) for line in lines)
    return [line.lower() if lowercase else line for line in tokenised]


def tokenise(source: Path, target: Path, language: str, lowercase: bool, workers: Workers) -> None:
    """Write the tokenised text of `source` to `target`."""
    function = partial(tokenise_lines, language=language, lowercase=lowercase)
    write_mapped(function, source, target, workers, f"tokenise {target.name}")


# ---- byte-pair encoding ---------------------------------------------------------------------


def learn_joint_bpe(tokenised: Iterable[Path], codes: Path, merges: int) -> None:
    """Learn `merges` BPE operations on all `tokenised` files together and write them to `codes`."""
    words: Counter[str] = Counter()
    for path in tokenised:
        for line in read_lines(path):
            words.update(line.split())
    vocabulary = [f"{word} {count}" for word, count in words.items()]
    codes.parent.mkdir(parents=True, exist_ok=True)
    # The library shows its progress bar always; ours is silent away from a terminal.
    subword_learn.tqdm = partial(tqdm, desc="learn BPE", leave=False, disable=None)
    with open(codes, "w", encoding="utf-8", newline="\n") as stream:
        subword_learn.learn_bpe(vocabulary, stream, merges, is_dict=True)
    report(f"learn BPE: {count_lines(codes) - 1:,} merges from {len(vocabulary):,} words")


@lru_cache(maxsize=1)
def _bpe(codes: str) -> BPE:
    return BPE(io.StringIO(codes))


def segment_lines(lines: list[str], codes: str) -> list[str]:
    """Segment tokenised lines by the BPE operations in the text `codes`."""
    bpe = _bpe(codes)
    return [bpe.segment(line) for line in lines]


def apply_bpe(source: Path, target: Path, codes: Path, workers: Workers) -> None:
    """Write the BPE segments of tokenised `source` to `target`."""
    function = partial(segment_lines, codes=codes.read_text(encoding="utf-8"))
    write_mapped(function, source, target, workers, f"apply BPE to {target.name}")


# ---- binarising -----------------------------------------------------------------------------


def binarise(text: Path, destination: Path, source: str, target: str, workers: int) -> None:
    """Run fairseq-preprocess on `text`/{train,valid,test}.* with one dictionary for both sides."""
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--joined-dictionary"]
    command += ["--source-lang", source, "--target-lang", target]
    command += [f"--{split}pref={text / split}" for split in SPLITS]
    command += ["--destdir", str(destination), "--workers", str(workers)]
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if finished.returncode != 0:
        lines = finished.stdout.strip().splitlines() or ["it printed nothing"]
        raise PrepError(f"fairseq-preprocess ended with {finished.returncode}: {lines[-1]}")
    # The log holds nothing but paths in a folder that is about to be renamed.
    (destination / "preprocess.log").unlink()
    types = count_lines(destination / f"dict.{source}.txt")
    report(f"binarise: a joint dictionary of {types:,} types")
