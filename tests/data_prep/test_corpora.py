"""What holds for every corpus that data-prep/ declares."""

from __future__ import annotations

import importlib
import importlib.util
from argparse import Namespace
from pathlib import Path

import pytest

from prep import stages
from prep.files import ARCHIVES, SPLITS, find_raw, read_raw, write_lines
from prep.pairs import Corpus, read_side
from prep.stages import RawCorpus

FOLDER = Path(stages.__file__).parents[1]
MODULES = [importlib.import_module(path.stem) for path in sorted(FOLDER.glob("*.py"))]
CORPORA = {
    module.__name__: module.CORPUS
    for module in MODULES
    if isinstance(getattr(module, "CORPUS", None), RawCorpus)
}
PAIRS = [corpus for corpus in CORPORA.values() if isinstance(corpus, Corpus)]


@pytest.mark.parametrize("name", CORPORA)
def test_every_raw_file_can_be_downloaded(name, tmp_path):
    corpus = CORPORA[name]
    assert corpus.name == name
    for source in corpus.sources:
        assert source.urls and all("://" in url for url in source.urls)
        # a page that a server sends in its place is noticed
        assert source.digest or source.lines or source.name.endswith(ARCHIVES)
        (tmp_path / source.name).touch()
    if corpus.sources:
        paths = find_raw(tmp_path, corpus.raw_files).values()
        assert {path.name for path in paths} == {x.name for x in corpus.sources}


@pytest.mark.parametrize("corpus", PAIRS, ids=lambda corpus: corpus.name)
def test_a_corpus_of_pairs_says_what_it_needs(corpus, tmp_path, real):
    assert len(set(corpus.languages)) == 2 and corpus.lines.keys() <= set(SPLITS)
    assert (corpus.merges is not None) != (corpus.types.keys() == set(corpus.languages))
    assert corpus.merges is not None or not corpus.joint  # types are those of one language
    for split in SPLITS:  # sentencepiece gets untokenized text
        rules = corpus.rules_of(split, Namespace(subword="sentencepiece"))
        assert not rules.tokenizer
        assert rules.unescape == ("tokenized_reference" in corpus.scoring)
    paths = read_raw(real(corpus.name), corpus.raw_files, tmp_path)
    for language in corpus.languages:
        assert len(list(read_side(corpus, paths, "test", language))) == corpus.lines["test"]


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
