"""Find wording that a native reader has to decode, and say what to write instead.

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
CODE = (".py", ".sh", ".cpp", ".h", ".inc")
ENDINGS = (*CODE, ".md", ".yaml", ".html")
SKIPPED = ("results/", "tools/plain_english.py", "tests/tools/test_plain_english.py")

COUNTED = (
    "bits|GiB|hours|layers|MB|MiB|minutes|nats|numbers|points|runs|seconds|seeds|sentences|steps"
    "|times|tokens|trials|updates|values|vectors|words"
)
SINGLE = "cell|column|dot|file|label|line|list|panel|process|row|worker"
PER = (
    "arm|batch|branch|character|channel|claim|core|dot|epoch|GPU|head|hour|layer|letter|line|machine"
    "|minute|node|norm|placement|process|row|run|second|seed|sentence|site|step|token|trial|update"
    "|word|worker"
)
NO_SENTENCE = (
    "Also|As|At|Beside|By|From|In|None (for|if|where)|Not|Of|On|That|The same|Those|To|What it|With"
    "|Without"
)


@dataclass(frozen=True)
class Pattern:
    """A kind of wording, and what replaces it.

    Attributes:
        expression: matches within a line.
        instead: what to write.
        endings: the files to search, by the ends of their names.
    """

    expression: re.Pattern[str]
    instead: str
    endings: tuple[str, ...] = ENDINGS


PATTERNS = {
    "a for per": Pattern(
        re.compile(rf"\b({COUNTED}|(an?|one) ({SINGLE})) an? ({PER})\b"),
        "'per': nats per character",
    ),
    "less for minus": Pattern(
        re.compile(r"[`'\"}] less [`'\"{]|[nN]orm less (the )?[a-zA-Z`]+[nN]orm"),
        "'minus' or 'compared with'",
    ),
    "docstring that is no sentence": Pattern(
        re.compile(rf'"""({NO_SENTENCE})\b'), "what the function does, takes and returns"
    ),
    "move a statistic": Pattern(
        re.compile(
            r"[mM]ov(e|es|ed|ing)[ _]((its|the|a|no|their)[ _])?(running )?(statistic|buffer)"
            r"|\bstatistics? (is |are |was |were )?moved?\b"
        ),
        "'update'",
    ),
    "vague verb": Pattern(
        re.compile(
            r"\bin work\b(?!\.)|\blook(s|ing) on\b|\bis asked\b|\bwhat it finds\b"
            r"|\bcan(not)? serve\b|had come to"
        ),
        "the verb of the field",
    ),
    "where for if": Pattern(
        re.compile(r"\b(None|NaN|[eE]mpty|[A-Za-z]*Error) where\b"), "'if'", CODE
    ),
    "stands": Pattern(
        re.compile(r"\bstands?\b(?! (for|in for|still)\b)(?!-)"), "'is', 'is in', 'is called'", CODE
    ),
    "as it is": Pattern(
        re.compile(r"\b(stays?|left|leaves?|kept|keeps?|taken|seen) as (it is|they are)\b"),
        "'unchanged', 'does not change'",
        CODE,
    ),
    "is there": Pattern(
        re.compile(r"\b(is|are|was|were) (not )?there\b(?! (a|an|any|anything|no)\b)"),
        "'exists', 'is installed', 'is missing'",
        CODE,
    ),
    "of interest": Pattern(
        re.compile(r"\bof interest\b"),
        "'that matters', with what it matters for",
        CODE,
    ),
    "PowerNorm's layer-scale": Pattern(
        re.compile(r"\b(the|any|each|its|no|with|without|after|before) layer-scale\b(?![-`'\"])"),
        "'RMS pre-scaling'; layer-scale is CaiT's",
        CODE,
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
            if path.endswith(pattern.endings) and pattern.expression.search(line):
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
