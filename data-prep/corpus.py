"""The folder of a prepared corpus: how it appears all at once, and what its manifest says.

OUT/raw   the untouched reference text of valid and test, for sacrebleu
OUT/tok   tokenised text
OUT/bpe   BPE-segmented text and the codes (absent for a corpus without BPE)
OUT/bin   what fairseq-train reads
OUT/manifest.json   settings, counts and digests; its `checksum` is the identity of the data
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Callable, Dict

from steps import SPLITS, PrepError, file_digest, only_one_process, read_lines, report

MANIFEST = "manifest.json"
FORMAT = 1  # to be raised when a change of the code makes other data of the same settings
# Tool in the manifest: the distributions that provide it.
TOOLS = {
    "sacremoses": ("sacremoses",),
    "subword-nmt": ("subword-nmt",),
    "fairseq": ("fairseq-fixed", "fairseq"),
}

Recipe = Dict[str, Any]


def make_recipe(
    corpus: str, source: str, target: str, settings: dict[str, Any], inputs: dict[str, str]
) -> Recipe:
    """All that determines the data; `inputs` maps the name of each input to its SHA-256."""
    return {
        "format": FORMAT,
        "corpus": corpus,
        "source": source,
        "target": target,
        "settings": settings,
        "inputs": inputs,
    }


def publish(out: Path, recipe: Recipe, build: Callable[[Path], None], overwrite: bool) -> str:
    """Make OUT by `build`, or find it made already by the same recipe; returns the checksum.

    `build` fills a temporary folder beside OUT, which takes OUT's name only when it is
    complete, so a failure or a kill at any moment leaves OUT as it was. Raises PrepError where
    OUT holds something else or cannot be written.
    """
    out = out.resolve()
    checksum = None if overwrite else _find_complete(out, recipe)
    if checksum is None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with only_one_process(out.parent / f".{out.name}.lock", f"preparing {out}"):
            _remove_leftovers(out)
            # The process that we waited for may have done our work.
            checksum = None if overwrite else _find_complete(out, recipe)
            if checksum is None:
                checksum = _make(out, recipe, build)
                report(f"done: the corpus lies in {out}")
                return checksum
    report(f"nothing to do: the corpus lies complete in {out}")
    return checksum


def _make(out: Path, recipe: Recipe, build: Callable[[Path], None]) -> str:
    if out.exists() and not _is_empty(out):
        read_manifest(out)  # --overwrite replaces a prepared corpus and nothing else
    work = out.with_name(f"{out.name}.tmp-{os.getpid()}")
    work.mkdir()
    try:
        build(work)
        checksum = _write_manifest(work, recipe)
        _put_in_place(work, out)
    except OSError as error:  # a full disk, for one, comes without the name of a file
        raise PrepError(f"cannot make {out}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return checksum


def _find_complete(out: Path, recipe: Recipe) -> str | None:
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
    missing = [name for name in expected_files(manifest) if not (out / name).is_file()]
    if missing:
        raise PrepError(f"{out} has lost {', '.join(missing)}; pass --overwrite to make it again")
    checksum: str = manifest["checksum"]
    return checksum


def read_manifest(out: Path) -> dict[str, Any]:
    """OUT/manifest.json; raises PrepError where OUT is not a folder that `publish` made."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not {"corpus", "files", "checksum"} <= manifest.keys():
        raise PrepError(f"{out} exists and is not a prepared corpus; choose another --out")
    return manifest


def expected_files(manifest: dict[str, Any]) -> list[str]:
    """Names, relative to OUT, of the files without which a corpus is not complete."""
    source, target = manifest["source"], manifest["target"]
    binary = [
        f"bin/{split}.{source}-{target}.{language}.{suffix}"
        for split in SPLITS
        for language in (source, target)
        for suffix in ("bin", "idx")
    ]
    return [*manifest["files"], *binary]


# ---- the manifest ---------------------------------------------------------------------------


def _write_manifest(work: Path, recipe: Recipe) -> str:
    """Write work/manifest.json and return the checksum in it."""
    languages = (recipe["source"], recipe["target"])
    names = [f"{split}.{language}" for split in SPLITS for language in languages]
    counts = {
        folder: {
            name: count_text(work / folder / name)
            for name in names
            if (work / folder / name).is_file()
        }
        for folder in ("raw", "tok", "bpe")
        if (work / folder).is_dir()
    }
    # What the model sees: the last text step and the dictionaries.
    text = "bpe" if "bpe" in counts else "tok"
    identity = [f"{text}/{name}" for name in names]
    identity += [f"bin/dict.{language}.txt" for language in languages]
    digests = {name: file_digest(work / name) for name in identity}
    checksum = overall_checksum(digests)
    manifest = {
        **recipe,
        "checksum": checksum,
        "counts": counts,
        "files": digests,
        "versions": tool_versions(),
    }
    with open(work / MANIFEST, "w", encoding="utf-8", newline="\n") as stream:
        json.dump(manifest, stream, indent=2)
        stream.write("\n")
    return checksum


def overall_checksum(digests: dict[str, str]) -> str:
    """SHA-256 over the sorted lines `digest  name`, the form that sha256sum prints."""
    lines = sorted(f"{digest}  {name}\n" for name, digest in digests.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def count_text(path: Path) -> dict[str, int]:
    """Lines and whitespace-separated tokens of a text file."""
    lines = tokens = 0
    for line in read_lines(path):
        lines += 1
        tokens += len(line.split())
    return {"lines": lines, "tokens": tokens}


def tool_versions() -> dict[str, str]:
    """Versions of Python and of the tools that shape the data, with the distribution's name."""
    versions = {"python": platform.python_version()}
    for tool, distributions in TOOLS.items():
        for distribution in distributions:
            try:
                versions[tool] = f"{distribution} {version(distribution)}"
                break
            except PackageNotFoundError:
                continue
    return versions


# ---- the folder -----------------------------------------------------------------------------


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _put_in_place(work: Path, out: Path) -> None:
    """Give the finished folder OUT's name; what was there is removed afterwards."""
    for path in work.rglob("*"):
        if path.is_file():
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())
    old = work.with_name(f"{work.name}.old")
    if out.exists():
        os.rename(out, old)
    os.rename(work, out)
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(out: Path) -> None:
    """Clear what a killed run left; we hold the lock, so nobody is writing there."""
    prefix = f"{out.name}.tmp-"
    for path in out.parent.iterdir():
        if not path.name.startswith(prefix):
            continue
        pid, _, suffix = path.name[len(prefix) :].partition(".")
        if not pid.isdigit() or suffix not in ("", "old"):
            continue
        if suffix == "old" and not out.exists():
            os.rename(path, out)  # killed between the two renames of _put_in_place
        else:
            shutil.rmtree(path, ignore_errors=True)


# ---- the command line -----------------------------------------------------------------------


def positive_int(text: str) -> int:
    """argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every corpus has."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the prepared corpus"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="make it again where DIR holds one already"
    )
    parser.add_argument(
        "--workers",
        type=positive_int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one a core); the result does not depend on it",
    )


def run_command(main: Callable[[], None]) -> None:
    """Run a command; a failure that the user can mend is one line on stderr and exit status 1."""
    try:
        main()
    except (PrepError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("error: interrupted; nothing is left half-written", file=sys.stderr)
        sys.exit(130)
