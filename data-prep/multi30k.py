#!/usr/bin/env python3
"""Prepare Multi30k task 1 (captions of images, English and German) for fairseq.

Steps: normalised punctuation, Moses tokenisation, lower case, joint BPE, fairseq-preprocess.
The files are train, val and test_2016_flickr, each .en and .de, plain or as .gz.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import fetch
import steps
from corpus import add_common_arguments, make_recipe, positive_int, publish, run_command
from steps import PrepError

LANGUAGES = ("en", "de")
# Split: stem of its files, number of lines in each.
FILES = {"train": ("train", 29000), "valid": ("val", 1014), "test": ("test_2016_flickr", 1000)}
BASE_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
DIGESTS = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}


def find_raw(folder: Path) -> dict[str, Path]:
    """The six raw files by their prepared names, `train.en` and so on, with line counts checked.

    Raises PrepError where one is missing, damaged, or has not the lines that Multi30k has.
    """
    raw = {}
    for split, (stem, lines) in FILES.items():
        english, german = (_find_file(folder, f"{stem}.{language}") for language in LANGUAGES)
        steps.check_parallel(english, german, lines)
        raw.update({f"{split}.en": english, f"{split}.de": german})
    return raw


def _find_file(folder: Path, name: str) -> Path:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise PrepError(f"neither {name}.gz nor {name} is in {folder}")


def build(work: Path, raw_folder: Path, args: argparse.Namespace) -> None:
    """Fill `work` with raw/, tok/, bpe/ and bin/ from the files in `raw_folder`."""
    if args.raw is None:
        fetch.download_all(BASE_URL, DIGESTS, raw_folder)
    raw = find_raw(raw_folder)
    codes = work / "bpe" / "codes"
    for split in ("valid", "test"):
        for language in LANGUAGES:
            name = f"{split}.{language}"
            steps.write_lines(work / "raw" / name, steps.read_lines(raw[name]))
    with steps.start_workers(args.workers) as workers:
        for name, path in raw.items():
            language = name.rpartition(".")[2]
            steps.tokenise(path, work / "tok" / name, language, lowercase=True, workers=workers)
        training = [work / "tok" / f"train.{language}" for language in LANGUAGES]
        steps.learn_joint_bpe(training, codes, args.merges)
        for name in raw:
            steps.apply_bpe(work / "tok" / name, work / "bpe" / name, codes, workers)
    steps.binarise(work / "bpe", work / "bin", args.src, args.tgt, args.workers)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; `argv` is sys.argv without it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_arguments(parser)
    parser.add_argument(
        "--raw", type=Path, metavar="DIR", help="folder with the raw files (default: download them)"
    )
    parser.add_argument(
        "--download-dir",
        type=Path,
        metavar="DIR",
        help="without --raw: where to download them to and keep them (default: OUT.download)",
    )
    parser.add_argument(
        "--merges",
        type=positive_int,
        default=10000,
        metavar="N",
        help="BPE operations (default: %(default)s)",
    )
    parser.add_argument("--src", choices=LANGUAGES, default="en", help="default: %(default)s")
    parser.add_argument("--tgt", choices=LANGUAGES, default="de", help="default: %(default)s")
    args = parser.parse_args(argv)
    if args.src == args.tgt:
        parser.error(f"--src and --tgt are both {args.src}")
    return args


def main(argv: list[str] | None = None) -> None:
    """Prepare the corpus; raises PrepError for bad input."""
    args = parse_args(argv)
    if args.raw is None:
        out = args.out.resolve()
        folder = args.download_dir or out.with_name(f"{out.name}.download")
        inputs = DIGESTS
    else:
        folder = args.raw
        inputs = {path.name: steps.file_digest(path) for path in find_raw(folder).values()}
    settings = {"merges": args.merges, "lowercase": True}
    recipe = make_recipe("multi30k", args.src, args.tgt, settings, inputs)
    publish(args.out, recipe, partial(build, raw_folder=folder, args=args), args.overwrite)


if __name__ == "__main__":
    run_command(main)
