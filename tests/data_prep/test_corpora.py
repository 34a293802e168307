"""What holds for every corpus that data-prep/ declares."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from prep import stages
from prep.command_line import parse_args
from prep.corpora import load_corpora
from prep.corpus import Choices
from prep.text_files import SPLITS, write_lines

CORPORA = load_corpora()


@pytest.fixture(params=CORPORA.items(), ids=CORPORA)
def named(request):
    return request.param


def test_a_corpus_has_the_name_of_its_file_and_two_languages(named):
    name, corpus = named
    assert corpus.name == name
    assert len(set(corpus.languages)) == 2
    assert corpus.raw.languages == corpus.languages
    assert corpus.raw.lines.keys() <= set(SPLITS)


def test_every_raw_file_can_be_downloaded(named, tmp_path):
    _, corpus = named
    for source in corpus.sources:
        assert source.urls and all("://" in url for url in source.urls)
        (tmp_path / source.name).touch()
    assert {path.name for path in corpus.raw.inputs(tmp_path)} == {x.name for x in corpus.sources}


def test_the_size_of_the_vocabulary_is_known(named):
    _, corpus = named
    assert (corpus.merges is not None) != (corpus.types.keys() == set(corpus.languages))
    assert corpus.merges is not None or not corpus.joint  # types are those of one language


def test_sentencepiece_gets_untokenized_text(named):
    _, corpus = named
    choices = Choices(corpus.languages, "sentencepiece", "", "", corpus.merges)
    for split in SPLITS:
        rules = corpus.rules_of(split, choices)
        assert not rules.tokenizer
        assert rules.unescape == ("tokenized_reference" in corpus.scoring)


def test_its_command_line_has_its_defaults(named, tmp_path):
    _, corpus = named
    args = parse_args(corpus, None, ["--out", str(tmp_path)])
    assert (args.src, args.tgt) == corpus.languages
    assert args.merges == corpus.merges
    assert hasattr(args, "tokenizer") == bool(corpus.rules.tokenizer)


def test_real_raw_files_are_whole(named):
    """Whether they are all of the original is said by what the corpus declares of their lines."""
    name, corpus = named
    folder = Path(os.environ.get("NORM_DATA_DIR", ""), name)
    if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip(f"NORM_DATA_DIR names no folder with {name}/ in it")
    corpus.raw.check(folder)
    for language in corpus.languages:
        assert next(iter(corpus.raw.read(folder, "test", language))).strip()


NEW_CORPUS = """
from prep.corpus import Corpus
from prep.fetch import Source
from prep.raw_files import PlainFiles
from prep.text_rules import TextRules

RAW = PlainFiles(("en", "de"), stems={"train": "train", "valid": "dev", "test": "test"})
CORPUS = Corpus(
    name="reviews",
    languages=RAW.languages,
    sources=tuple(Source(n, (f"https://example.org/{n}",)) for n in RAW.names()),
    raw=RAW,
    rules=TextRules(tokenizer="sacremoses", lowercase=True),
    merges=10,
)
"""


def test_a_new_corpus_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "reviews.py").write_text(NEW_CORPUS)
    corpus = load_corpora(tmp_path)["reviews"]
    for name in corpus.raw.names():
        write_lines(tmp_path / "raw" / name, ["A good film.", "It isn't bad."])

    def make_dictionaries(text, destination, *languages_and_joint):
        for language in corpus.languages:
            write_lines(destination / f"dict.{language}.txt", [])

    monkeypatch.setattr(stages, "make_dictionaries", make_dictionaries)
    command = ["--raw", str(tmp_path / "raw"), "--out", str(tmp_path / "out"), "--workers", "1"]
    stages.run_stages(corpus, parse_args(corpus, None, [*command, "--only", "prepare"]))
    assert (tmp_path / "out/tok/test.en").read_text() == "a good film .\nit isn &apos;t bad .\n"
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["corpus"], manifest["target"]) == ("reviews", "de")
    assert set(manifest["inputs"]) == set(corpus.raw.names())
