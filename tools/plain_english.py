"""Finds wording that a native reader has to decode, with what to write instead.

    python tools/plain_english.py          # the number of lines by pattern
    python tools/plain_english.py --lines  # each line

It reads the tracked text files, code and pages alike, but not the published results. A test allows
the lines in tests/tools/test_plain_english.py and no others.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENDINGS = (".py", ".md", ".sh", ".yaml", ".html", ".cpp", ".h", ".inc")
SKIPPED = ("results/", "tools/plain_english.py", "tests/tools/test_plain_english.py")

COUNTED = (
    "bits|GiB|hours|layers|MB|MiB|minutes|nats|numbers|points|runs|seconds|seeds|sentences|steps"
    "|times|tokens|trials|updates|values|vectors|words"
)
PER = (
    "arm|batch|branch|character|channel|core|dot|epoch|head|hour|layer|letter|line|minute|norm"
    "|placement|process|row|run|second|seed|sentence|site|step|token|update|word|worker"
)


@dataclass(frozen=True)
class Pattern:
    """A kind of wording, and what replaces it.

    Attributes:
        expression: matches within a line.
        instead: what to write.
    """

    expression: re.Pattern[str]
    instead: str


PATTERNS = {
    "a for per": Pattern(re.compile(rf"\b({COUNTED}) an? ({PER})\b"), "'per': nats per character"),
    "less for minus": Pattern(
        re.compile(r"[`'\"}] less [`'\"{]|[nN]orm less (the )?[a-zA-Z`]+[nN]orm"),
        "'minus' or 'compared with'",
    ),
    "docstring that is no sentence": Pattern(
        re.compile(r'"""(Of|That of|Those( of)?|The same|None where)\b'),
        "what the function does, takes and returns",
    ),
    "move a statistic": Pattern(
        re.compile(
            r"\b[mM]ov(e|es|ed|ing) (its |the |a |no |their )?(running )?(statistic|buffer)"
        ),
        "'update'",
    ),
    "vague verb": Pattern(
        re.compile(
            r"\bin work\b(?!\.)|\blooks on\b|\bis asked\b|\bwhat it finds\b|\bcan serve\b"
            r"|had come to"
        ),
        "the verb of the field",
    ),
}


@dataclass(frozen=True)
class Found:
    """A line with such wording."""

    pattern: str
    path: str
    line: int
    text: str


def tracked_files() -> Iterator[str]:
    """Yield the paths of the text files that git tracks, relative to the checkout."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for path in listed.stdout.splitlines():
        if path.endswith(ENDINGS) and not path.startswith(SKIPPED):
            yield path


def search(path: str, text: str) -> Iterator[Found]:
    """Yield the lines of a file that match a pattern."""
    for number, line in enumerate(text.splitlines(), start=1):
        for name, pattern in PATTERNS.items():
            if pattern.expression.search(line):
                yield Found(name, path, number, line.strip())


def search_checkout() -> list[Found]:
    """Return the lines of all tracked files that match a pattern."""
    return [
        found
        for path in tracked_files()
        for found in search(path, (ROOT / path).read_text(encoding="utf-8"))
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", action="store_true", help="print each line too")
    args = parser.parse_args(argv)
    every = search_checkout()
    for name, pattern in PATTERNS.items():
        of_pattern = [found for found in every if found.pattern == name]
        print(f"{len(of_pattern):5}  {name}; write {pattern.instead}")
        for found in of_pattern if args.lines else ():
            print(f"       {found.path}:{found.line}: {found.text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
