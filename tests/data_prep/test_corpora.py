"""What holds for every corpus that data-prep/ declares."""

from __future__ import annotations

import importlib
from argparse import Namespace
from pathlib import Path

import pytest

from prep import stages
from prep.files import SPLITS, find_raw, read_raw
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
