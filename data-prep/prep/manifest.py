"""The manifest of a prepared corpus: settings, inputs, counts, digests, versions."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from prep.layout import TRANSLATION, dictionaries, text_files
from prep.messages import PrepError
from prep.text_files import file_digest, read_lines

MANIFEST = "manifest.json"
FORMAT = 1  # raise it when a change of the code gives other data for the same settings
# Tool in the manifest: the distributions that provide it.
TOOLS = {
    "sacremoses": ("sacremoses",),
    "regex": ("regex",),
    "subword-nmt": ("subword-nmt",),
    "sentencepiece": ("sentencepiece",),
    "fairseq": ("fairseq-fixed", "fairseq"),
}

Recipe = dict[str, Any]
Counts = dict[str, int]  # of "lines" and "tokens"


def make_recipe(
    corpus: str,
    source: str,
    target: str | None,
    settings: dict[str, Any],
    inputs: dict[str, str],
    scoring: Sequence[str] = (),
    layout: str = TRANSLATION,
    second: str | None = None,
) -> Recipe:
    """All that determines the data and its scores.

    Args:
        source: the side that a model reads: a language, or the name of the text.
        target: the side that it is to give: a language or the label; None for plain text.
        inputs: name of each raw file to its SHA-256.
        scoring: what scoring must know of the corpus (`Corpus.scoring`); left out where empty.
        layout: of its files, one of `LAYOUTS`; left out for translation.
        second: another text that the model reads, beside `source`; left out where there is none.
    """
    recipe = {
        "format": FORMAT,
        "corpus": corpus,
        "source": source,
        "target": target,
        "settings": settings,
        "inputs": inputs,
    }
    recipe |= {"second": second} if second else {}
    recipe |= {"scoring": list(scoring)} if scoring else {}
    return recipe | ({"layout": layout} if layout != TRANSLATION else {})


def read_manifest(out: Path) -> dict[str, Any]:
    """OUT/manifest.json; raises PrepError if `publish` did not make OUT."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not {"corpus", "files", "checksum"} <= manifest.keys():
        raise PrepError(f"{out} exists and is not a prepared corpus; choose another --out")
    return manifest


def write_manifest(work: Path, recipe: Recipe, raw_counts: dict[str, Counts]) -> str:
    """Write work/manifest.json and return the checksum in it.

    `raw_counts` are the counts of raw text that is not kept: raw/ holds no training text.
    """
    names = text_files(recipe)
    counts = {
        folder: {
            name: count_text(work / folder / name)
            for name in names
            if (work / folder / name).is_file()
        }
        for folder in ("raw", "tok", "bpe")
        if (work / folder).is_dir()
    }
    counts["raw"] = {**raw_counts, **counts.get("raw", {})}
    # What the model sees: the last text step and the dictionaries.
    text = "bpe" if "bpe" in counts else "tok"
    identity = [f"{text}/{name}" for name in names]
    identity += [f"bin/{name}" for name in dictionaries(recipe)]
    digests = digests_of(work, identity)
    checksum = overall_checksum(digests)
    manifest = {
        **recipe,
        "checksum": checksum,
        "counts": counts,
        "files": digests,
        "versions": tool_versions(),
    }
    write_json(work / MANIFEST, manifest)
    return checksum


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an indented JSON file that ends with a newline."""
    with open(path, "w", encoding="utf-8", newline="\n") as stream:
        json.dump(content, stream, indent=2)
        stream.write("\n")


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Name: SHA-256 of files in `folder`."""
    return {name: file_digest(folder / name) for name in names}


def overall_checksum(digests: dict[str, str]) -> str:
    """SHA-256 of the sorted lines `digest  name`, as sha256sum prints them."""
    lines = sorted(f"{digest}  {name}\n" for name, digest in digests.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def count_text(path: Path) -> Counts:
    """Lines and whitespace-separated tokens of a text file."""
    lines = tokens = 0
    for line in read_lines(path):
        lines += 1
        tokens += len(line.split())
    return {"lines": lines, "tokens": tokens}


def tool_versions() -> dict[str, str]:
    """Versions of Python and of the tools that shape the data, with the names of distributions."""
    versions = {"python": platform.python_version()}
    for tool, distributions in TOOLS.items():
        for distribution in distributions:
            try:
                versions[tool] = f"{distribution} {version(distribution)}"
                break
            except PackageNotFoundError:
                continue
    return versions
