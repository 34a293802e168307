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
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from norm_plugin.commands.command_line import CommandError, write_text
from prep.files import SPLITS, file_digest, lines_of, locked, report

MANIFEST = "manifest.json"
BINARIZED = "binarized.json"
FORMAT = 1  # increase it if a change of the code gives other data for the same settings
# The distributions that provide each tool in the manifest.
TOOLS = {
    "sacremoses": ("sacremoses",),
    "regex": ("regex",),
    "subword-nmt": ("subword-nmt",),
    "sentencepiece": ("sentencepiece",),
    "fairseq": ("fairseq-fixed", "fairseq"),
}
WHICH_TEXT = ("corpus", "source", "target")  # the keys of a recipe that bin/ depends on

Recipe = Mapping[str, Any]
Counts = dict[str, int]  # of "lines" and "tokens"
Build = Callable[[Path], dict[str, Counts]]


# ---- the names of the files -----------------------------------------------------------------

TRANSLATION = "translation"
SENTENCE_PREDICTION = "sentence_prediction"
LANGUAGE_MODELING = "language_modeling"
LAYOUTS = {
    TRANSLATION: ("dict.{side}.txt", "{split}.{source}-{target}.{side}"),
    SENTENCE_PREDICTION: ("{side}/dict.txt", "{side}/{split}"),
    LANGUAGE_MODELING: ("dict.txt", "{split}"),
}
"""For each task of fairseq, the paths of a dictionary and of a binary file (without suffix) in
bin/. A side is a language, a text or a label. The entry `layout` of a manifest names the task
(default: translation)."""


def sides(recipe: Recipe) -> list[str]:
    """The sides of a corpus: two languages, one or two texts and a label, or plain text alone."""
    return [recipe[name] for name in ("source", "second", "target") if recipe.get(name)]


def dictionary(recipe: Recipe, side: str) -> str:
    """The path of the dictionary of a side in bin/."""
    return LAYOUTS[recipe.get("layout", TRANSLATION)][0].format(side=side)


def binary_file(recipe: Recipe, split: str, side: str) -> str:
    """The path of a binary file in bin/, without its suffix."""
    stem = LAYOUTS[recipe.get("layout", TRANSLATION)][1]
    languages = {name: recipe.get(name) for name in ("source", "target")}
    return stem.format(split=split, side=side, **languages)


def text_folder(out: Path) -> Path:
    """The folder of the text that the model sees: bpe/ or tok/."""
    return out / "bpe" if (out / "bpe").is_dir() else out / "tok"


# ---- recipe and manifest --------------------------------------------------------------------


def make_recipe(
    corpus: str,
    source: str,
    target: str | None,
    settings: dict[str, Any],
    inputs: dict[str, str],
    **more: Any,
) -> Recipe:
    """A recipe: everything that determines the data and its scores.

    Args:
        source: the input side: a language, or the name of the text.
        target: the output side: a language or the label; None for plain text.
        inputs: the SHA-256 of each raw file, by its name.
        more: optional entries: `second`, a second input side; `scoring`, properties that affect
            scoring; `layout`, one of `LAYOUTS`. Empty ones are left out.
    """
    return {
        "format": FORMAT,
        "corpus": corpus,
        "source": source,
        "target": target,
        "settings": settings,
        "inputs": inputs,
        **{name: value for name, value in more.items() if value},
    }


def read_manifest(out: Path) -> dict[str, Any]:
    """Read OUT/manifest.json; CommandError if OUT is not a prepared corpus."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        if {"corpus", "files", "checksum"} <= manifest.keys():
            return dict(manifest)
    except (OSError, ValueError, AttributeError):
        pass
    raise CommandError(f"{out} exists and is not a prepared corpus; choose another --out")


def write_manifest(work: Path, recipe: Recipe, raw_counts: dict[str, Counts]) -> None:
    """Write work/manifest.json.

    `raw_counts` are the counts of raw text that is not kept: raw/ has no training text.
    """
    names = [f"{split}.{side}" for split in SPLITS for side in sides(recipe)]
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
    identity += [f"bin/{dictionary(recipe, side)}" for side in sides(recipe)]
    digests = digests_of(work, identity)
    # the SHA-256 of the sorted output of sha256sum
    lines = sorted(f"{digest}  {name}\n" for name, digest in digests.items())
    manifest = {
        **recipe,
        "checksum": hashlib.sha256("".join(lines).encode()).hexdigest(),
        "counts": counts,
        "files": digests,
        "versions": tool_versions(),
    }
    write_text(work / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def digests_of(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of files in `folder`, by name."""
    return {name: file_digest(folder / name) for name in names}


def count_text(path: Path) -> Counts:
    """Count the lines and the whitespace-separated tokens of a text file."""
    lines = tokens = 0
    for line in lines_of(path):
        lines += 1
        tokens += len(line.split())
    return {"lines": lines, "tokens": tokens}


def tool_versions() -> dict[str, str]:
    """The versions of Python and of the tools that affect the data."""
    versions = {"python": platform.python_version()}
    for tool, distributions in TOOLS.items():
        for distribution in reversed(distributions):
            with suppress(PackageNotFoundError):
                versions[tool] = f"{distribution} {version(distribution)}"
    return versions


# ---- text, then binary form -----------------------------------------------------------------


def publish(out: Path, recipe: Recipe, build: Build, overwrite: bool) -> None:
    """Make OUT by `build`, unless it has been made with the same recipe.

    `build` writes to a temporary folder beside OUT and returns the counts of the raw text. The
    complete folder is renamed to OUT, so a failure or a kill does not change OUT. Raises
    CommandError if OUT has other content.
    """
    out = out.resolve()
    # first without the lock, which is impossible on a read-only disk
    if overwrite or not is_prepared(out, recipe):
        out.parent.mkdir(parents=True, exist_ok=True)
        with _lock(out):
            # another process may have made it while this one waited for the lock
            if overwrite or not is_prepared(out, recipe):
                if not _is_empty(out):
                    read_manifest(out)  # --overwrite replaces nothing but a prepared corpus
                with _temporary(out) as work:
                    write_manifest(work, recipe, build(work))
                    _replace(out, work)
                report(f"done: the corpus is in {out}")
                return
    report(f"nothing to do: the corpus is complete in {out}")


def publish_binary(
    out: Path, recipe: Recipe, build: Callable[[Path], None], overwrite: bool
) -> None:
    """Add the binary text to OUT/bin by `build`, unless it exists for the text in OUT.

    Its record is written last, so after a failure or a kill it is made again. Raises CommandError
    if OUT has no text, or the text of another corpus or direction than `recipe`.
    """
    out = out.resolve()
    if not (out / MANIFEST).is_file():
        raise CommandError(f"{out} holds no prepared text to binarize; run --only prepare first")
    if differs := _difference(read_manifest(out), {key: recipe[key] for key in WHICH_TEXT}):
        raise CommandError(
            f"{out} was prepared with {differs}; choose another --out or the options it was "
            "prepared with"
        )
    if overwrite or not _is_binarized(out):
        with _lock(out):
            if overwrite or not _is_binarized(out):
                with _temporary(out / "bin") as work:
                    build(work)
                    files = digests_of(work, _binary_files(out))
                    os.sync()
                    for name in files:
                        os.replace(work / name, out / "bin" / name)
                record = {**_inputs_of_binary(out), "files": files}
                write_text(out / "bin" / BINARIZED, json.dumps(record, indent=2) + "\n")
                report(f"done: binarized in {out / 'bin'}")
                return
    report(f"nothing to do: the text is binarized in {out / 'bin'}")


def _binary_files(out: Path) -> list[str]:
    manifest = read_manifest(out)
    return [
        f"{binary_file(manifest, split, side)}.{suffix}"
        for split in SPLITS
        for side in sides(manifest)
        for suffix in ("bin", "idx")
    ]


def _inputs_of_binary(out: Path) -> dict[str, Any]:
    return {"checksum": read_manifest(out)["checksum"], "fairseq": tool_versions().get("fairseq")}


def _is_binarized(out: Path) -> bool:
    """Whether OUT/bin is complete, and was made from the text in OUT by this version of fairseq."""
    try:
        record = json.loads((out / "bin" / BINARIZED).read_text(encoding="utf-8"))
        files = digests_of(out / "bin", _binary_files(out))
    except (FileNotFoundError, ValueError):
        return False
    return bool(record == {**_inputs_of_binary(out), "files": files})


def is_prepared(out: Path, recipe: Recipe) -> bool:
    """True if OUT was made with the same recipe; False if it is missing or empty.

    Raises CommandError for another recipe or missing files.
    """
    if _is_empty(out):
        return False
    manifest = read_manifest(out)
    if differs := _difference(manifest, recipe):
        raise CommandError(
            f"{out} was prepared with {differs}; choose another --out or pass --overwrite"
        )
    if missing := [name for name in manifest["files"] if not (out / name).is_file()]:
        raise CommandError(f"{out} lacks {', '.join(missing)}; pass --overwrite to make it again")
    return True


def _difference(manifest: dict[str, Any], recipe: Recipe) -> str:
    """How the manifest of a corpus differs from `recipe`; empty if it does not."""
    return ", ".join(
        f"{key} {json.dumps(manifest.get(key))}, not {json.dumps(value)}"
        if key != "inputs"
        else "other input files"
        for key, value in recipe.items()
        if manifest.get(key) != value
    )


# ---- the folder -----------------------------------------------------------------------------


def _lock(out: Path) -> AbstractContextManager[None]:
    return locked(out.parent / f".{out.name}.lock", f"preparing {out}")


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Yield an empty folder in `.NAME.tmp` beside `folder`; the caller must hold the lock."""
    top = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(top, ignore_errors=True)  # left by a killed process
    (top / "new").mkdir(parents=True)
    try:
        yield top / "new"
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _replace(folder: Path, work: Path) -> None:
    """Replace `folder` by `work`, which `_temporary` made."""
    old = work.with_name("old")
    os.sync()  # otherwise a crash of the machine may leave the name without the content
    try:
        if folder.exists():
            os.rename(folder, old)
        os.rename(work, folder)
    finally:
        if old.exists() and not folder.exists():  # failed between the two renames
            os.rename(old, folder)
