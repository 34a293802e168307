"""The command of a corpus: download, prepare and binarize it, as far as that is not done."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from norm_plugin.io.command_line import CommandError, at_least, run_command
from prep.binarize import publish_binary
from prep.download import Source, download_all
from prep.files import RawFile, file_digest, find_raw, read_raw
from prep.folder import MANIFEST, Counts, DataSpec, publish, read_manifest

SEED = at_least(0)  # `random.Random` drops the sign


@dataclass(frozen=True, kw_only=True)
class RawCorpus(ABC):
    """A corpus with raw files; each task has a subclass."""

    name: str
    """The name of the corpus's file in data-prep/, without .py."""
    sources: tuple[Source, ...]
    """The files to download; none if the corpus cannot be downloaded."""

    @property
    @abstractmethod
    def raw_files(self) -> list[RawFile]:
        """Return all raw files."""

    @abstractmethod
    def data_spec(self, args: argparse.Namespace) -> DataSpec:
        """Return what determines the data, except the raw files; see `make_data_spec`."""

    @abstractmethod
    def build(
        self, args: argparse.Namespace, paths: Mapping[str, Path], work: Path
    ) -> dict[str, Counts]:
        """Write text and dictionaries to `work`; return the counts of raw text that is not stored.

        `paths`: the path of each raw file, by its name.
        """

    def parse(self, parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
        """Add the flags of the task, and parse and check them."""
        return parser.parse_args(argv)

    def main(self, description: str | None) -> None:
        """Run the command of the corpus with the arguments of sys.argv, and exit."""
        run(lambda argv: self.run(argv, description))

    def run(self, argv: Sequence[str], description: str | None = None) -> None:
        """Make what is not done yet; raise CommandError for bad input."""
        parser = make_parser(description)
        parser.add_argument(
            "--raw",
            type=Path,
            metavar="DIR",
            help="folder with the raw files (default: download them)",
        )
        parser.add_argument(
            "--download-dir",
            type=Path,
            metavar="DIR",
            help="folder for downloaded files, without --raw (default: OUT.download)",
        )
        args = self.parse(parser, argv)
        if args.raw is None and not self.sources:
            raise CommandError(
                "this corpus cannot be downloaded; pass the folder of its raw files as --raw DIR "
                "(--help names them)"
            )
        out = args.out.resolve()
        folder = args.raw or args.download_dir or out.with_name(f"{out.name}.download")

        def build(work: Path) -> dict[str, Counts]:
            if args.raw is None:
                download_all(self.sources, folder)
            unpacked = work / "unpacked"
            counts = self.build(args, read_raw(folder, self.raw_files, unpacked), work)
            shutil.rmtree(unpacked, ignore_errors=True)
            return counts

        spec = {**self.data_spec(args), "inputs": self._inputs(args, folder)}
        publish(args.out, spec, build, args.overwrite)
        publish_binary(args.out, args.overwrite)

    def _inputs(self, args: argparse.Namespace, folder: Path) -> dict[str, str]:
        """Return the SHA-256 of the raw files by name; download files of which none is known."""
        if args.raw is not None:
            paths = dict.fromkeys(find_raw(folder, self.raw_files).values())
            return {path.name: file_digest(path) for path in paths}
        known: dict[str, str] = {}
        if (args.out / MANIFEST).is_file() and not args.overwrite:
            known = read_manifest(args.out)["inputs"]  # the raw files may be gone
        digests = {each.name: each.digest or known.get(each.name) for each in self.sources}
        if None in digests.values():
            download_all(self.sources, folder)
        return {name: digest or file_digest(folder / name) for name, digest in digests.items()}


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of all corpora."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the prepared corpus"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a corpus in DIR")
    parser.add_argument(
        "--workers",
        type=at_least(1),
        default=len(os.sched_getaffinity(0)),  # under Slurm, the cores of the job
        metavar="N",
        help="number of processes (default: one per core); the result does not depend on it",
    )
    return parser


def run(main: Callable[[list[str]], None]) -> None:
    """Run a command with sys.argv; print a user's error as one line, and exit with status 1.

    Like SIGINT, SIGTERM and SIGHUP remove unfinished folders, but keep unfinished downloads.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, lambda number, frame: sys.exit(128 + number))

    def status() -> int:
        try:
            main(sys.argv[1:])
        except OSError as error:
            raise CommandError(str(error)) from error
        except MemoryError:
            raise CommandError("memory ran out; pass a smaller --workers") from None
        return 0

    run_command(status)
