"""The stages of a corpus with raw files, of any task: fetch, prepare, binarize."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from prep import fetch
from prep.manifest import Counts, Recipe, read_manifest
from prep.messages import PrepError, report
from prep.publishing import publish, publish_binarized
from prep.text_files import file_digest


class CheckedFiles(Protocol):
    """Raw files in a folder."""

    def inputs(self, folder: Path) -> list[Path]:
        """All raw files; raises PrepError if one is missing."""

    def check(self, folder: Path) -> None:
        """Raise PrepError if a file is damaged, not to be trusted, or not the expected one."""


class HasRawFiles(Protocol):
    """A corpus of any task."""

    @property
    def sources(self) -> tuple[fetch.Source, ...]:
        """The files to download."""

    @property
    def raw(self) -> CheckedFiles:
        """How the raw files are checked."""


def run_raw_stages(
    corpus: HasRawFiles,
    args: argparse.Namespace,
    recipe: Callable[[dict[str, str]], Recipe],
    build: Callable[[Path, Path], dict[str, Counts]],
    binarize: Callable[[Path], None],
) -> None:
    """Run the stage that --only names, or all; raises PrepError for bad input.

    Args:
        recipe: gives the recipe for the names and SHA-256 of the raw files.
        build: from the folder of the raw files, fills another with the text and the dictionaries;
            returns the counts of raw text that is not kept.
        binarize: fills a folder with the binary form of the text in OUT.
    """
    if args.only != "binarize" and args.raw is None and not corpus.sources:
        raise PrepError(
            "this corpus cannot be downloaded; pass the folder of its raw files as --raw DIR "
            "(--help says which they are)"
        )
    if args.only == "fetch":
        fetch_raw(corpus, args)
    if args.only in (None, "prepare"):

        def fill(work: Path) -> dict[str, Counts]:
            fetch_or_refuse(corpus, args)
            raw = raw_folder(args)
            corpus.raw.check(raw)
            return build(raw, work)

        publish(args.out, recipe(input_digests(corpus, args)), fill, args.overwrite)
    if args.only in (None, "binarize"):
        # without --only, prepare has removed the bin/ that --overwrite means
        again = args.overwrite and args.only == "binarize"
        publish_binarized(args.out, recipe({}), binarize, again)


def raw_folder(args: argparse.Namespace) -> Path:
    """Where the raw files are: --raw, else where they are downloaded to."""
    out: Path = args.out.resolve()
    folder: Path = args.raw or args.download_dir or out.with_name(f"{out.name}.download")
    return folder


def fetch_raw(corpus: HasRawFiles, args: argparse.Namespace) -> None:
    """The stage fetch: download the raw files, unless --raw names them, and check them."""
    folder = raw_folder(args)
    if args.raw is None:
        fetch.download_all(corpus.sources, folder)
    corpus.raw.check(folder)
    report(f"done: the raw files are in {folder}")


def input_digests(corpus: HasRawFiles, args: argparse.Namespace) -> dict[str, str]:
    """Name to SHA-256 of the raw files; files without a known checksum are fetched first."""
    folder = raw_folder(args)
    if args.raw is not None:
        return {path.name: file_digest(path) for path in corpus.raw.inputs(folder)}
    digests = fetch.known_digests(corpus.sources, folder)
    if digests is None and (args.out / "manifest.json").is_file() and not args.overwrite:
        # OUT was made from a folder that is gone; the manifest names the files it was made from.
        digests = read_manifest(args.out).get("inputs")
        if not isinstance(digests, dict) or set(digests) != {s.name for s in corpus.sources}:
            digests = None
    if digests is None:
        fetch_or_refuse(corpus, args)
        digests = fetch.known_digests(corpus.sources, folder)
        assert digests is not None  # a fetched file has a checksum
    return digests


def fetch_or_refuse(corpus: HasRawFiles, args: argparse.Namespace) -> None:
    """Fetch the raw files, unless --only asks for another stage."""
    if args.raw is not None:
        return
    folder = raw_folder(args)
    missing = [source.name for source in corpus.sources if not (folder / source.name).is_file()]
    if args.only is not None and missing:
        raise PrepError(
            f"{folder} lacks {', '.join(missing)}; run --only fetch first, or pass --raw DIR"
        )
    fetch.download_all(corpus.sources, folder)
