"""The folder of a prepared corpus: the text appears in one step, complete, and so does its record.

OUT/raw   untouched reference text of valid and test, for sacrebleu
OUT/tok   tokenized text (with sentencepiece, which needs no tokenizer: the raw text, lowercased if
          the corpus is)
OUT/bpe   text in subword units, and the model that segmented it (absent without subword units)
OUT/bin   what fairseq-train reads: the dictionaries, and later the binary text
OUT/manifest.json   settings, counts and digests; `checksum` identifies the data
OUT/bin/binarized.json   the checksum of the data and the version of fairseq that bin/ comes from
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
FORMAT = 1  # raise it when a change of the code gives other data for the same settings
# Tool in the manifest: the distributions that provide it.
TOOLS = {
    "sacremoses": ("sacremoses",),
    "regex": ("regex",),
    "subword-nmt": ("subword-nmt",),
    "sentencepiece": ("sentencepiece",),
    "fairseq": ("fairseq-fixed", "fairseq"),
}
WHICH_TEXT = ("corpus", "source", "target")  # of a recipe: what bin/ relies on

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
"""Below bin/, the dictionary and the binary file without its suffix, by fairseq's name of the task.
A side is what follows the name of a split: a language, a text or a label. A manifest names the task
as `layout`; without that entry it is translation."""


def sides(recipe: Recipe) -> list[str]:
    """The sides of a corpus: two languages, one or two texts and a label, or plain text alone."""
    return [recipe[name] for name in ("source", "second", "target") if recipe.get(name)]


def dictionary(recipe: Recipe, side: str) -> str:
    """The name of the dictionary of a side, below bin/."""
    return LAYOUTS[recipe.get("layout", TRANSLATION)][0].format(side=side)


def binary_file(recipe: Recipe, split: str, side: str) -> str:
    """The name of a binary file below bin/, without its suffix."""
    stem = LAYOUTS[recipe.get("layout", TRANSLATION)][1]
    languages = {name: recipe.get(name) for name in ("source", "target")}
    return stem.format(split=split, side=side, **languages)


def text_folder(out: Path) -> Path:
    """What the model sees: the last text step."""
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
    """All that determines the data and its scores.

    Args:
        source: the side that a model reads: a language, or the name of the text.
        target: the side that it is to give: a language or the label; None for plain text.
        inputs: name of each raw file to its SHA-256.
        more: what is left out where it is empty: `second`, another text that the model reads;
            `scoring`, what scoring must know of the corpus; `layout`, one of `LAYOUTS`.
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
    """OUT/manifest.json; raises CommandError if `publish` did not make OUT."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        if {"corpus", "files", "checksum"} <= manifest.keys():
            return dict(manifest)
    except (OSError, ValueError, AttributeError):
        pass
    raise CommandError(f"{out} exists and is not a prepared corpus; choose another --out")


def write_manifest(work: Path, recipe: Recipe, raw_counts: dict[str, Counts]) -> None:
    """Write work/manifest.json.

    `raw_counts` are the counts of raw text that is not kept: raw/ holds no training text.
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
    # SHA-256 of the sorted lines `digest  name`, as sha256sum prints them.
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
    """Name: SHA-256 of files in `folder`."""
    return {name: file_digest(folder / name) for name in names}


def count_text(path: Path) -> Counts:
    """Lines and whitespace-separated tokens of a text file."""
    lines = tokens = 0
    for line in lines_of(path):
        lines += 1
        tokens += len(line.split())
    return {"lines": lines, "tokens": tokens}


def tool_versions() -> dict[str, str]:
    """Versions of Python and of the tools that shape the data, with the names of distributions."""
    versions = {"python": platform.python_version()}
    for tool, distributions in TOOLS.items():
        for distribution in reversed(distributions):
            with suppress(PackageNotFoundError):
                versions[tool] = f"{distribution} {version(distribution)}"
    return versions


# ---- text, then binary form -----------------------------------------------------------------


def publish(out: Path, recipe: Recipe, build: Build, overwrite: bool) -> None:
    """Make OUT by `build`, unless the same recipe has made it already.

    `build` fills a temporary folder beside OUT and returns the counts of the raw text. When the
    folder is complete it is renamed to OUT, so a failure or a kill leaves OUT as it was. Raises
    CommandError if OUT holds something else.
    """
    out = out.resolve()
    # First without the lock: a corpus on a read-only disk cannot have one.
    if overwrite or not is_prepared(out, recipe):
        out.parent.mkdir(parents=True, exist_ok=True)
        with _lock(out):
            # Another process may have done the work while this one waited for the lock.
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
    """Add the binary text to OUT/bin by `build`, unless it is there for the text in OUT.

    Its record is written last, so what a failure or a kill has left is made again. Raises
    CommandError if OUT holds no text, or that of another corpus or direction than `recipe`.
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
    """Whether OUT/bin is complete, and made from the text in OUT by this fairseq."""
    try:
        record = json.loads((out / "bin" / BINARIZED).read_text(encoding="utf-8"))
        files = digests_of(out / "bin", _binary_files(out))
    except (FileNotFoundError, ValueError):
        return False
    return bool(record == {**_inputs_of_binary(out), "files": files})


def is_prepared(out: Path, recipe: Recipe) -> bool:
    """Whether OUT is complete and made by the same recipe, not absent or empty.

    Raises CommandError if it is neither.
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
    """What a corpus was prepared with that is not in `recipe`; empty if there is nothing."""
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
    """An empty folder below `.NAME.tmp` beside another, for the process that holds the lock."""
    top = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(top, ignore_errors=True)  # of a process that was killed
    (top / "new").mkdir(parents=True)
    try:
        yield top / "new"
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _replace(folder: Path, work: Path) -> None:
    """Rename `work`, of `_temporary`, to `folder`."""
    old = work.with_name("old")
    os.sync()  # else a crash of the machine may leave the name without the content
    try:
        if folder.exists():
            os.rename(folder, old)
        os.rename(work, folder)
    finally:
        if old.exists() and not folder.exists():  # stopped between the two renames
            os.rename(old, folder)
