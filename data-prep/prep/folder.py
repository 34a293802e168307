"""The folder of a prepared corpus. Its text, and later its binary form, appear atomically.

OUT/raw   original reference text of valid and test, for sacrebleu
OUT/tok   tokenized text (with sentencepiece, which needs no tokenizer: the raw text, lowercased if
          the corpus is)
OUT/bpe   text in subword units, and their model (missing without subword units)
OUT/bin   the input of fairseq-train: the dictionaries, and later the binary text
OUT/manifest.json   settings, counts and digests; `checksum` identifies the data
OUT/bin/binarized.json   the checksum of the data and the version of fairseq that made bin/
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_json, write_json
from prep.files import SPLITS, file_digest, lines_of, locked, report

MANIFEST = "manifest.json"
FORMAT = 1  # increase it if a change of the code changes the data for the same settings
# The tools that affect the data; if fairseq-fixed is installed, it is the fairseq that is imported.
TOOLS = ("sacremoses", "regex", "subword-nmt", "sentencepiece", "fairseq", "fairseq-fixed")

DataSpec = Mapping[str, Any]
Counts = dict[str, int]  # numbers of "lines" and "tokens"
Build = Callable[[Path], dict[str, Counts]]


# ---- the names of the files -----------------------------------------------------------------

LAYOUTS = {
    "translation": ("dict.{side}.txt", "{split}.{source}-{target}.{side}"),
    "sentence_prediction": ("{side}/dict.txt", "{side}/{split}"),
    "language_modeling": ("dict.txt", "{split}"),
}
"""For each task of fairseq, the paths of a dictionary and of a binary file (without suffix) in
bin/. A side is a language, a text or a label. The entry `layout` of a manifest names the task
(default: translation)."""


def sides(spec: DataSpec) -> list[str]:
    """Return the sides of a corpus: two languages, one or two texts and a label, or plain text."""
    return [spec[name] for name in ("source", "second", "target") if spec.get(name)]


def dictionary(spec: DataSpec, side: str) -> str:
    """Return the path of the dictionary of a side in bin/."""
    return LAYOUTS[spec.get("layout", "translation")][0].format(side=side)


def binary_file(spec: DataSpec, split: str, side: str) -> str:
    """Return the path of a binary file in bin/, without its suffix."""
    stem = LAYOUTS[spec.get("layout", "translation")][1]
    return stem.format(split=split, side=side, **spec)


def text_folder(out: Path) -> Path:
    """Return the folder of the text that the model sees: bpe/ or tok/."""
    return out / "bpe" if (out / "bpe").is_dir() else out / "tok"


# ---- specification and manifest ------------------------------------------------------------


def make_data_spec(
    corpus: str, source: str, target: str | None, settings: Mapping[str, Any], **more: Any
) -> DataSpec:
    """Return a specification: all that determines the data and its scores, except its inputs.

    Args:
        source: the input side: a language, or the name of the text.
        target: the output side: a language or the label; None for plain text.
        more: optional entries: `second`, a second input side; `scoring`, properties that affect
            scoring; `layout`, one of `LAYOUTS`. Empty ones are omitted.
    """
    return {
        "format": FORMAT,
        "corpus": corpus,
        "source": source,
        "target": target,
        "settings": settings,
        "inputs": {},  # the SHA-256 of each raw file, by its name
        **{name: value for name, value in more.items() if value},
    }


def read_manifest(out: Path) -> dict[str, Any]:
    """Read OUT/manifest.json; CommandError if OUT is not a prepared corpus."""
    with suppress(CommandError):
        manifest = read_json(out / MANIFEST)
        if isinstance(manifest, dict) and {"corpus", "files", "checksum"} <= manifest.keys():
            return manifest
    raise CommandError(f"{out} exists, but is not a prepared corpus; choose another --out")


def write_manifest(work: Path, spec: DataSpec, raw_counts: dict[str, Counts]) -> None:
    """Write work/manifest.json.

    `raw_counts` are the counts of raw text that is not stored: raw/ has no training text.
    """
    names = [f"{split}.{side}" for split in SPLITS for side in sides(spec)]
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
    identity = [f"{text_folder(work).name}/{name}" for name in names]
    identity += [f"bin/{dictionary(spec, side)}" for side in sides(spec)]
    digests = digests_of(work, identity)
    # the SHA-256 of the sorted output of sha256sum
    lines = sorted(f"{digest}  {name}\n" for name, digest in digests.items())
    manifest = {
        **spec,
        "checksum": hashlib.sha256("".join(lines).encode()).hexdigest(),
        "counts": counts,
        "files": digests,
        "versions": tool_versions(),
    }
    write_json(work / MANIFEST, manifest)


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files in `folder`, by name."""
    return {name: file_digest(folder / name) for name in names}


def count_text(path: Path) -> Counts:
    """Count the lines and the whitespace-separated tokens of a text file."""
    lines = tokens = 0
    for line in lines_of(path):
        lines += 1
        tokens += len(line.split())
    return {"lines": lines, "tokens": tokens}


def tool_versions() -> dict[str, str]:
    """Return the versions of Python and of the tools that affect the data."""
    versions = {"python": platform.python_version()}
    for distribution in TOOLS:
        with suppress(PackageNotFoundError):
            tool = distribution.removesuffix("-fixed")
            versions[tool] = f"{distribution} {version(distribution)}"
    return versions


# ---- the folder -----------------------------------------------------------------------------


def publish(out: Path, spec: DataSpec, build: Build, overwrite: bool) -> None:
    """Create OUT by `build`, unless it has been made from the same specification.

    `build` writes to a temporary folder next to OUT and returns the counts of the raw text. The
    complete folder is renamed to OUT, so a failure or a kill does not change OUT.

    Raises:
        CommandError: OUT has other content.
    """
    out = out.resolve()
    with locked_unless(lambda: not overwrite and is_prepared(out, spec), out) as needed:
        if not needed:
            report(f"nothing to do: the corpus is complete in {out}")
            return
        if not _is_empty(out):
            read_manifest(out)  # --overwrite only replaces a prepared corpus
        with temporary(out) as work:
            write_manifest(work, spec, build(work))
            _replace(out, work)
        report(f"done: the corpus is in {out}")


@contextmanager
def locked_unless(is_done: Callable[[], bool], out: Path) -> Iterator[bool]:
    """Yield whether something is to be done in OUT, with its lock held if so."""
    if is_done():  # checked first without the lock, which cannot be taken on a read-only disk
        yield False
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.parent / f".{out.name}.lock", f"preparing {out}"):
        # another process may have done it while this one waited for the lock
        yield not is_done()


def is_prepared(out: Path, spec: DataSpec) -> bool:
    """Return True if OUT was made from the same specification; False if it is missing or empty.

    Raises:
        CommandError: OUT was made from another specification, or lacks files.
    """
    if _is_empty(out):
        return False
    manifest = read_manifest(out)
    if differs := difference(manifest, spec):
        raise CommandError(
            f"{out} was prepared with {differs}; choose another --out or pass --overwrite"
        )
    if missing := [name for name in manifest["files"] if not (out / name).is_file()]:
        raise CommandError(f"{out} lacks {', '.join(missing)}; pass --overwrite to make it again")
    return True


def difference(manifest: Mapping[str, Any], spec: DataSpec) -> str:
    """Return how the manifest of a corpus differs from `spec`; empty if it does not."""
    return ", ".join(
        f"{key} {json.dumps(manifest.get(key))}, not {json.dumps(value)}"
        if key != "inputs"
        else "other input files"
        for key, value in spec.items()
        if manifest.get(key) != value
    )


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """Yield an empty folder in `.NAME.tmp` next to `folder`; the caller must hold the lock."""
    top = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(top, ignore_errors=True)  # left by a killed process
    (top / "new").mkdir(parents=True)
    try:
        yield top / "new"
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _replace(folder: Path, work: Path) -> None:
    """Replace `folder` by `work`, which `temporary` made."""
    old = work.with_name("old")
    os.sync()  # otherwise a crash of the machine may leave the name without the content
    try:
        if folder.exists():
            os.rename(folder, old)
        os.rename(work, folder)
    finally:
        if old.exists() and not folder.exists():  # failed between the two renames
            os.rename(old, folder)
