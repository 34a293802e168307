"""What holds for every corpus that data-prep/ declares."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path

import pytest

from prep import stages
from prep.files import SPLITS, find_raw, read_raw, write_lines
from prep.pairs import Choices, Corpus, read_side
from prep.stages import RawCorpus

FOLDER = Path(stages.__file__).parents[1]
MODULES = [importlib.import_module(path.stem) for path in sorted(FOLDER.glob("*.py"))]
CORPORA = {
    module.__name__: module.CORPUS
    for module in MODULES
    if isinstance(getattr(module, "CORPUS", None), RawCorpus)
}
PAIRS = {name: corpus for name, corpus in CORPORA.items() if isinstance(corpus, Corpus)}


@pytest.fixture(params=PAIRS.items(), ids=PAIRS)
def named(request):
    return request.param


@pytest.mark.parametrize("name", CORPORA)
def test_every_raw_file_can_be_downloaded(name, tmp_path):
    corpus = CORPORA[name]
    assert corpus.name == name
    for source in corpus.sources:
        assert source.urls and all("://" in url for url in source.urls)
        (tmp_path / source.name).touch()
    if corpus.sources:
        found = find_raw(tmp_path, corpus.raw_files)
        assert {path.name for path in found.values()} == {x.name for x in corpus.sources}


def test_a_corpus_of_pairs_has_two_languages(named):
    _, corpus = named
    assert len(set(corpus.languages)) == 2
    assert corpus.lines.keys() <= set(SPLITS)


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


def test_real_raw_files_are_whole(named, tmp_path):
    """Whether they are all of the original is said by what the corpus declares of their lines."""
    name, corpus = named
    folder = Path(os.environ.get("NORM_DATA_DIR", ""), name)
    if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
        pytest.skip(f"NORM_DATA_DIR names no folder with {name}/ in it")
    paths = read_raw(folder, corpus.raw_files, tmp_path)
    for language in corpus.languages:
        lines = list(read_side(corpus, paths, "test", language))
        assert len(lines) == corpus.lines["test"] and lines[0].strip()


NEW_CORPUS = """
from prep.download import Source
from prep.pairs import Corpus, plain_files
from prep.text import TextRules

NAMES = [f"{split}.{language}" for split in ("train", "dev", "test") for language in ("en", "de")]
CORPUS = Corpus(
    name="reviews",
    languages=("en", "de"),
    sources=tuple(Source(n, (f"https://example.org/{n}",)) for n in NAMES),
    files=plain_files({"train": "train", "valid": "dev", "test": "test"}),
    rules=TextRules(tokenizer="sacremoses", lowercase=True),
    merges=10,
)
"""


def test_a_new_corpus_is_one_file(tmp_path, prepare):
    (tmp_path / "reviews.py").write_text(NEW_CORPUS)
    spec = importlib.util.spec_from_file_location("reviews", tmp_path / "reviews.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.NAMES:
        write_lines(tmp_path / "raw" / name, ["A good film.", "It isn't bad."])
    manifest = prepare(module.CORPUS, tmp_path / "raw", tmp_path / "out")
    assert (tmp_path / "out/tok/test.en").read_text() == "a good film .\nit isn &apos;t bad .\n"
    assert (manifest["corpus"], manifest["target"]) == ("reviews", "de")
    assert set(manifest["inputs"]) == set(module.NAMES)
