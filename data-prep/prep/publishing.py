"""The folder of a prepared corpus: how each of its two halves appears all at once.

OUT/raw   the untouched reference text of valid and test, for sacrebleu
OUT/tok   tokenized text (with sentencepiece, which needs no tokenizer: the raw text, lower-cased
          where the corpus is)
OUT/bpe   text in subword units and the model that cut it (absent for a corpus without)
OUT/bin   what fairseq-train reads: the dictionaries, and later the binary text
OUT/manifest.json   settings, counts and digests; its `checksum` is the identity of the data
OUT/bin/binarized.json   of which data and by which fairseq bin/ was made
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from prep.locks import only_one_process
from prep.manifest import (
    Counts,
    Recipe,
    digests_of,
    read_manifest,
    tool_versions,
    write_json,
    write_manifest,
)
from prep.messages import PrepError, report
from prep.text_files import SPLITS

BINARIZED = "binarized.json"

Build = Callable[[Path], dict[str, Counts]]


def publish(out: Path, recipe: Recipe, build: Build, overwrite: bool) -> str:
    """Make OUT by `build`, or find it made already by the same recipe; returns the checksum.

    `build` fills a temporary folder beside OUT, which takes OUT's name only when it is
    complete, so a failure or a kill at any moment leaves OUT as it was; it returns the counts of
    the raw text. Raises PrepError where OUT holds something else or cannot be written.
    """
    out = out.resolve()
    checksum = None if overwrite or missing_files(out) else find_prepared(out, recipe)
    if checksum is None:
        with _lock(out):
            _remove_leftovers(out)
            _remove_leftovers(out / "bin")
            # The process that we waited for may have done our work.
            checksum = None if overwrite else find_prepared(out, recipe)
            if checksum is None:
                _make(out, lambda work: write_manifest(work, recipe, build(work)))
                checksum = str(read_manifest(out)["checksum"])
                report(f"done: the corpus lies in {out}")
                return checksum
    _clear_if_free(out)
    report(f"nothing to do: the corpus lies complete in {out}")
    return checksum


def publish_binarized(out: Path, build: Callable[[Path], None], overwrite: bool) -> None:
    """Make OUT/bin by `build` for the text in OUT, or find it made already for the same text."""
    out = out.resolve()
    if not (out / "manifest.json").is_file():
        raise PrepError(f"{out} holds no prepared text to binarize; run --only prepare first")
    # Without the lock first, which a corpus on a disk that is only read cannot have.
    if not overwrite and _is_binarized(out):
        _clear_if_free(out)
        report(f"nothing to do: the text is binarized in {out / 'bin'}")
        return
    with _lock(out):
        _remove_leftovers(out / "bin")
        # The process that we waited for may have done our work.
        if not overwrite and _is_binarized(out):
            report(f"nothing to do: the text is binarized in {out / 'bin'}")
            return

        def fill(work: Path) -> None:
            build(work)
            files = digests_of(work, _binary_files(out))
            write_json(work / BINARIZED, {**_inputs_of_binary(out), "files": files})

        _replace(out / "bin", fill)
    report(f"done: binarized in {out / 'bin'}")


def _inputs_of_binary(out: Path) -> dict[str, Any]:
    return {
        "checksum": read_manifest(out)["checksum"],
        "fairseq": tool_versions().get("fairseq"),
    }


def _binary_files(out: Path) -> list[str]:
    manifest = read_manifest(out)
    source, target = manifest["source"], manifest["target"]
    return [
        f"{split}.{source}-{target}.{language}.{suffix}"
        for split in SPLITS
        for language in (source, target)
        for suffix in ("bin", "idx")
    ]


def _is_binarized(out: Path) -> bool:
    """Whether OUT/bin is whole, and made of the text in OUT by this fairseq."""
    try:
        record = json.loads((out / "bin" / BINARIZED).read_text(encoding="utf-8"))
        found = digests_of(out / "bin", _binary_files(out))
    except (FileNotFoundError, ValueError):
        return False
    return bool(record == {**_inputs_of_binary(out), "files": found})


def find_prepared(out: Path, recipe: Recipe) -> str | None:
    """The checksum of a complete OUT made by the same recipe; None where OUT is to be made."""
    if not out.exists() or _is_empty(out):
        return None
    manifest = read_manifest(out)
    changed = [key for key in recipe if manifest.get(key) != recipe[key]]
    if changed:
        what = ", ".join(
            f"{key} {json.dumps(manifest.get(key))}, not {json.dumps(recipe[key])}"
            if key != "inputs"
            else "other input files"
            for key in changed
        )
        raise PrepError(f"{out} was prepared with {what}; choose another --out or pass --overwrite")
    missing = missing_files(out)
    if missing:
        raise PrepError(f"{out} has lost {', '.join(missing)}; pass --overwrite to make it again")
    checksum: str = manifest["checksum"]
    return checksum


def missing_files(out: Path) -> list[str]:
    """What a prepared OUT has lost of the text and dictionaries that its manifest names."""
    if not out.exists() or _is_empty(out):
        return []
    return [name for name in read_manifest(out)["files"] if not (out / name).is_file()]


# ---- the folder -----------------------------------------------------------------------------


def _lock(out: Path) -> AbstractContextManager[None]:
    out.parent.mkdir(parents=True, exist_ok=True)
    return only_one_process(_lock_of(out), f"preparing {out}")


def _lock_of(out: Path) -> Path:
    return out.parent / f".{out.name}.lock"


def _make(out: Path, build: Callable[[Path], Any]) -> None:
    if out.exists() and not _is_empty(out):
        read_manifest(out)  # --overwrite replaces a prepared corpus and nothing else
    _replace(out, build)


def _replace(folder: Path, build: Callable[[Path], Any]) -> None:
    """Give the name `folder` to what `build` makes in a temporary folder beside it."""
    work = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    work.mkdir()
    try:
        build(work)
        _put_in_place(work, folder)
    except OSError as error:  # a full disk, for one, comes without the name of a file
        raise PrepError(f"cannot make {folder}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _put_in_place(work: Path, out: Path) -> None:
    """Give the finished folder OUT's name; what was there is removed afterwards."""
    for path in work.rglob("*"):
        if path.is_file():
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
    old = work.with_name(f"{work.name}.old")
    try:
        if out.exists():
            os.rename(out, old)
        os.rename(work, out)
    finally:
        if old.exists() and not out.exists():  # stopped, or refused, between the two
            os.rename(old, out)
    shutil.rmtree(old, ignore_errors=True)


def _leftovers(out: Path) -> list[Path]:
    """What unfinished runs have left beside OUT, or are still writing."""
    if not out.parent.is_dir():
        return []
    prefix = f"{out.name}.tmp-"
    return [
        path
        for path in out.parent.iterdir()
        if path.name.startswith(prefix)
        and re.fullmatch(r"[0-9]+(\.old)?", path.name[len(prefix) :])
    ]


def _remove_leftovers(out: Path) -> None:
    """Clear what a killed run left; we hold the lock, so nobody is writing there."""
    for path in _leftovers(out):
        if path.suffix == ".old" and not out.exists():
            os.rename(path, out)  # killed between the two renames of _put_in_place
        else:
            shutil.rmtree(path, ignore_errors=True)


def _clear_if_free(out: Path) -> None:
    """Clear what killed runs left beside a complete OUT, but not while somebody is at work."""
    if not _leftovers(out) and not _leftovers(out / "bin"):
        return
    try:
        with open(_lock_of(out), "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(out)
            _remove_leftovers(out / "bin")
    except OSError:  # somebody is at work, or the folder is not ours to write
        return
