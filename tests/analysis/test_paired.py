"""The settings against the baseline on the sentences of the test set."""

from __future__ import annotations

import pytest

from made_up_results import folder_of, made_up, with_translations, write_corpus
from norm_plugin.analysis.paired import (
    NO_BASELINE,
    NO_TRANSLATIONS,
    NOT_SHOWN,
    SHOWN,
    compare_translations,
    read_references,
)
from norm_plugin.analysis.seeds import holm
from norm_plugin.analysis.study import read_study
from norm_plugin.commands.command_line import CommandError

REFERENCES = [f"ein hund läuft {i} mal über die grüne wiese ." for i in range(40)]
GOOD = [line.replace("grüne", "rote") if i % 6 == 0 else line for i, line in enumerate(REFERENCES)]
ALIKE = [line.replace("grüne", "rote") if i % 6 == 1 else line for i, line in enumerate(REFERENCES)]
BAD = [line.replace("hund läuft", "katze sitzt") for line in REFERENCES]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "toy", REFERENCES)


def write_study(tmp_path, *runs):
    """A study of ``(norm, seed, translations)``; None: none are kept."""
    results = [
        made_up(norm, seed)
        if lines is None
        else with_translations(made_up(norm, seed), tmp_path, lines, REFERENCES)
        for norm, seed, lines in runs
    ]
    return read_study(folder_of(tmp_path, *results))


def test_every_run_is_compared_with_the_same_seed_of_the_baseline(tmp_path, prepared):
    study = write_study(
        tmp_path,
        ("layernorm", 1, GOOD),
        ("layernorm", 2, None),
        ("alike", 1, ALIKE),
        ("far", 1, BAD),
        ("far", 2, BAD),
        ("far", 3, BAD),
        ("older", 1, None),
    )
    references = read_references(study, prepared)
    found = compare_translations(study, references, resamples=100, trials=200)
    rows = {(row.setting.norm, row.seed): row for row in found}
    assert rows["alike", 1].verdict == NOT_SHOWN
    assert rows["far", 1].verdict == SHOWN[False]
    assert rows["far", 2].verdict == rows["older", 1].verdict == NO_TRANSLATIONS
    assert rows["far", 3].verdict == NO_BASELINE
    tested = [row for row in found if row.scores]
    assert {(row.setting.norm, row.seed) for row in tested} == {("alike", 1), ("far", 1)}
    for place, name in enumerate(("bootstrap_p", "randomization_p")):
        raw = [getattr(row.scores, name) for row in tested]
        assert [row.corrected[place] for row in tested] == pytest.approx(holm(raw))


def test_another_corpus_is_refused(tmp_path):
    study = write_study(tmp_path, ("layernorm", 1, GOOD))
    other = write_corpus(tmp_path / "other", REFERENCES, checksum="decaf")
    with pytest.raises(CommandError, match="has the data checksum decaf, and the results have c0f"):
        read_references(study, other)


@pytest.mark.parametrize(
    ("references", "message"),
    [
        (BAD, "kept translations of layernorm seed 1 give .* references are others than when"),
        (REFERENCES[1:], "layernorm seed 1 has 40 translations kept, and there are 39 references"),
    ],
)
def test_another_test_set_is_refused(tmp_path, references, message):
    study = write_study(tmp_path, ("layernorm", 1, GOOD))
    corpus = write_corpus(tmp_path / "changed", references)
    with pytest.raises(CommandError, match=message):
        compare_translations(study, read_references(study, corpus))
