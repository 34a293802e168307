"""Randomization tests on translations: sacrebleu's scores, and what is said of clear cases."""

from __future__ import annotations

import pytest
import sacrebleu

from made_up_results import folder_of, made_up, with_translations, write_corpus
from norm_lab.study.significance import Verdict, holm
from norm_lab.study.study import read_study
from norm_lab.study.translations import (
    NO_BASELINE,
    NO_TRANSLATIONS,
    References,
    compare_translations,
    randomization_test,
    read_references,
)
from norm_plugin.io.command_line import CommandError

REFERENCES = [f"ein hund läuft {i} mal über die grüne wiese ." for i in range(60)]
GOOD = [line.replace("grüne", "rote") if i % 6 == 0 else line for i, line in enumerate(REFERENCES)]
ALIKE = [line.replace("grüne", "rote") if i % 6 == 1 else line for i, line in enumerate(REFERENCES)]
BAD = [line.replace("hund läuft", "katze sitzt") for line in REFERENCES]


def randomized(system, baseline, lowercase=False):
    return randomization_test(system, baseline, References(REFERENCES, lowercase), trials=200)


def test_the_difference_is_that_of_sacrebleus_scores():
    test = randomized(GOOD, BAD)
    ours, theirs = (sacrebleu.corpus_bleu(lines, [REFERENCES]).score for lines in (GOOD, BAD))
    assert test.difference == pytest.approx(ours - theirs, abs=1e-9)
    assert test.p < 0.05 and "ar:200" in test.signature


@pytest.mark.parametrize(("changed", "least"), [(1, 1.0), (3, 0.25)])
def test_a_few_sentences_that_all_become_worse_show_nothing(changed, least):
    """Two ways to exchange them have this difference; sacrebleu alone would give 1/201."""
    test = randomized(BAD[:changed] + REFERENCES[changed:], REFERENCES)
    assert test.difference < 0
    assert test.p == pytest.approx(least)


def test_case_counts_unless_told_not_to():
    upper = [line.upper() for line in GOOD]
    assert randomized(upper, GOOD).difference < 0
    equal = randomized(upper, GOOD, lowercase=True)
    assert (equal.difference, equal.p) == (0, 1)


def test_sentences_without_spaces_are_compared_as_they_are_scored():
    references = ["我们今天去公园散步，天气很好。"] * 4
    changed = [line.replace("散", "跑") for line in references]
    test = randomization_test(changed, references, References(references, False, "zh"), trials=20)
    assert -50 < test.difference < 0 and "tok:zh|" in test.signature


def write_study(tmp_path, *runs):
    """A study of ``(norm, seed, translations)``; None: none are kept."""
    results = [
        made_up(norm, seed)
        if lines is None
        else with_translations(made_up(norm, seed), lines, REFERENCES)
        for norm, seed, lines in runs
    ]
    return read_study(folder_of(tmp_path, *results))


def test_every_run_is_compared_with_the_same_seed_of_the_baseline(tmp_path):
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
    references = read_references(study, write_corpus(tmp_path / "corpus", REFERENCES))
    table = compare_translations(study, references, trials=200)
    verdicts = {(row.arm, row.seed): row.verdict for row in table.itertuples()}
    assert verdicts["alike, pre", 1] == Verdict.UNDECIDED
    assert verdicts["far, pre", 1] == Verdict.WORSE
    assert verdicts["far, pre", 2] == verdicts["older, pre", 1] == NO_TRANSLATIONS
    assert verdicts["far, pre", 3] == NO_BASELINE
    rows = table[table["difference"].notna()]
    assert set(rows["arm"]) == {"alike, pre", "far, pre"}
    assert list(rows["p_holm"]) == pytest.approx(holm(list(rows["p"])))


def test_every_run_has_a_verdict_where_every_run_can_be_tested(tmp_path):
    study = write_study(tmp_path, ("layernorm", 1, GOOD), ("far", 1, BAD))
    references = read_references(study, write_corpus(tmp_path / "corpus", REFERENCES))
    table = compare_translations(study, references, trials=200)
    assert table["verdict"].tolist() == [Verdict.WORSE]


def test_the_control_is_the_test_of_two_seeds_of_one_norm(tmp_path):
    runs = [("layernorm", seed, GOOD) for seed in (1, 2, 3)]
    runs += [("far", seed, lines) for seed, lines in ((1, BAD), (2, GOOD), (3, None))]
    study = write_study(tmp_path, *runs, ("alone", 1, BAD))
    references = read_references(study, write_corpus(tmp_path / "corpus", REFERENCES))
    table = compare_translations(study, references, trials=200).set_index(["arm", "seed"])
    far = table.loc["far, pre"]
    assert far.loc[1, "control_p"] == far.loc[2, "control_p"] == randomized(BAD, GOOD).p
    assert table["control_p"].isna()[[("far, pre", 3), ("alone, pre", 1)]].all()


def test_another_corpus_is_refused(tmp_path):
    study = write_study(tmp_path, ("layernorm", 1, GOOD))
    other = write_corpus(tmp_path / "other", REFERENCES, checksum="decaf")
    with pytest.raises(CommandError, match="has the data checksum decaf, but the results have c0f"):
        read_references(study, other)


@pytest.mark.parametrize(
    ("references", "message"),
    [
        (BAD, "stored translations of layernorm seed 1 give .* references have changed since"),
        (
            REFERENCES[1:],
            "layernorm seed 1 has 60 stored translations, but there are 59 references",
        ),
    ],
)
def test_references_of_another_test_set_are_refused(tmp_path, references, message):
    study = write_study(tmp_path, ("layernorm", 1, GOOD))
    corpus = write_corpus(tmp_path / "changed", references)
    with pytest.raises(CommandError, match=message):
        compare_translations(study, read_references(study, corpus))
