"""The folder of a prepared corpus: text and binary form each appear in one step, complete.

OUT/raw   untouched reference text of valid and test, for sacrebleu
OUT/tok   tokenized text (with sentencepiece, which needs no tokenizer: the raw text, lowercased if
          the corpus is)
OUT/bpe   text in subword units, and the model that segmented it (absent without subword units)
OUT/bin   what fairseq-train reads: the dictionaries, and later the binary text
OUT/manifest.json   settings, counts and digests; `checksum` identifies the data
OUT/bin/binarized.json   the checksum of the data and the version of fairseq that bin/ comes from
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

from prep.layout import binary_files
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

BINARIZED = "binarized.json"
WHICH_TEXT = ("corpus", "source", "target")  # of a recipe: what `build` of OUT/bin relies on

Build = Callable[[Path], dict[str, Counts]]


def publish(out: Path, recipe: Recipe, build: Build, overwrite: bool) -> str:
    """Make OUT by `build`, unless the same recipe has made it already; returns the checksum.

    `build` fills a temporary folder beside OUT and returns the counts of the raw text. When the
    folder is complete it is renamed to OUT, so a failure or a kill leaves OUT as it was. Raises
    PrepError if OUT holds something else or cannot be written.
    """
    out = out.resolve()
    checksum = None if overwrite or missing_files(out) else find_prepared(out, recipe)
    if checksum is None:
        with _lock(out):
            _remove_leftovers(out)
            _remove_leftovers(out / "bin")
            # Another process may have done the work while this one waited for the lock.
            checksum = None if overwrite else find_prepared(out, recipe)
            if checksum is None:
                _make(out, lambda work: write_manifest(work, recipe, build(work)))
                checksum = str(read_manifest(out)["checksum"])
                report(f"done: the corpus is in {out}")
                return checksum
    _clear_if_free(out)
    report(f"nothing to do: the corpus is complete in {out}")
    return checksum


def publish_binarized(
    out: Path, recipe: Recipe, build: Callable[[Path], None], overwrite: bool
) -> None:
    """Make OUT/bin by `build`, unless it has been made already for the text in OUT.

    Raises PrepError if OUT holds no text, or that of another corpus or direction than `recipe`.
    """
    out = out.resolve()
    if not (out / "manifest.json").is_file():
        raise PrepError(f"{out} holds no prepared text to binarize; run --only prepare first")
    if differs := _difference(read_manifest(out), {key: recipe[key] for key in WHICH_TEXT}):
        raise PrepError(
            f"{out} was prepared with {differs}; choose another --out or the options it was "
            "prepared with"
        )
    # First without the lock: a corpus on a read-only disk cannot have one.
    if not overwrite and _is_binarized(out):
        _clear_if_free(out)
        report(f"nothing to do: the text is binarized in {out / 'bin'}")
        return
    with _lock(out):
        _remove_leftovers(out / "bin")
        # Another process may have done the work while this one waited for the lock.
        if not overwrite and _is_binarized(out):
            report(f"nothing to do: the text is binarized in {out / 'bin'}")
            return

        def fill(work: Path) -> None:
            build(work)
            files = digests_of(work, binary_files(read_manifest(out)))
            write_json(work / BINARIZED, {**_inputs_of_binary(out), "files": files})

        _replace(out / "bin", fill)
    report(f"done: binarized in {out / 'bin'}")


def _inputs_of_binary(out: Path) -> dict[str, Any]:
    return {
        "checksum": read_manifest(out)["checksum"],
        "fairseq": tool_versions().get("fairseq"),
    }


def _is_binarized(out: Path) -> bool:
    """Whether OUT/bin is complete, and made from the text in OUT by this fairseq."""
    try:
        record = json.loads((out / "bin" / BINARIZED).read_text(encoding="utf-8"))
        found = digests_of(out / "bin", binary_files(read_manifest(out)))
    except (FileNotFoundError, ValueError):
        return False
    return bool(record == {**_inputs_of_binary(out), "files": found})


def find_prepared(out: Path, recipe: Recipe) -> str | None:
    """The checksum of a complete OUT made by the same recipe; None if OUT is absent or empty."""
    if not out.exists() or _is_empty(out):
        return None
    manifest = read_manifest(out)
    if differs := _difference(manifest, recipe):
        raise PrepError(
            f"{out} was prepared with {differs}; choose another --out or pass --overwrite"
        )
    missing = missing_files(out)
    if missing:
        raise PrepError(f"{out} lacks {', '.join(missing)}; pass --overwrite to make it again")
    checksum: str = manifest["checksum"]
    return checksum


def _difference(manifest: dict[str, Any], recipe: Recipe) -> str:
    """What a corpus was prepared with that is not in `recipe`; empty if there is nothing."""
    return ", ".join(
        f"{key} {json.dumps(manifest.get(key))}, not {json.dumps(value)}"
        if key != "inputs"
        else "other input files"
        for key, value in recipe.items()
        if manifest.get(key) != value
    )


def missing_files(out: Path) -> list[str]:
    """The text and dictionaries that the manifest of OUT names and that are not there."""
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
        read_manifest(out)  # --overwrite replaces nothing but a prepared corpus
    _replace(out, build)


def _replace(folder: Path, build: Callable[[Path], Any]) -> None:
    """Let `build` fill a temporary folder, and rename it to `folder`."""
    work = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    work.mkdir()
    try:
        build(work)
        _put_in_place(work, folder)
    except OSError as error:  # of a full disk, for example, which names no file
        raise PrepError(f"cannot make {folder}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _put_in_place(work: Path, out: Path) -> None:
    """Rename the finished folder to OUT, and remove what was there before."""
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
        if old.exists() and not out.exists():  # stopped between the two renames
            os.rename(old, out)
    shutil.rmtree(old, ignore_errors=True)


def _leftovers(out: Path) -> list[Path]:
    """The temporary folders of killed or running processes beside OUT."""
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
    """Remove the folders of killed processes. The lock is held, so none is in use."""
    for path in _leftovers(out):
        if path.suffix == ".old" and not out.exists():
            os.rename(path, out)  # killed between the two renames of _put_in_place
        else:
            shutil.rmtree(path, ignore_errors=True)


def _clear_if_free(out: Path) -> None:
    """Remove the folders of killed processes beside a complete OUT, unless one is at work."""
    if not _leftovers(out) and not _leftovers(out / "bin"):
        return
    try:
        with open(_lock_of(out), "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(out)
            _remove_leftovers(out / "bin")
    except OSError:  # another process is at work, or the folder is read-only
        return
