"""Paired tests on translations: sacrebleu's scores, and what the tests say of clear cases."""

from __future__ import annotations

import pytest
import sacrebleu

from norm_plugin.analysis.translations import paired_tests

REFERENCES = [f"ein hund läuft {i} mal über die grüne wiese ." for i in range(60)]
GOOD = [line.replace("grüne", "rote") if i % 6 == 0 else line for i, line in enumerate(REFERENCES)]
BAD = [line.replace("hund läuft", "katze sitzt") for line in REFERENCES]


def test_the_difference_is_that_of_sacrebleus_scores():
    found = paired_tests(GOOD, BAD, REFERENCES, resamples=100, trials=200)
    ours, theirs = (sacrebleu.corpus_bleu(lines, [REFERENCES]).score for lines in (GOOD, BAD))
    assert found.difference == pytest.approx(ours - theirs, abs=1e-9)
    assert found.bootstrap_p < 0.05 and found.randomization_p < 0.05
    assert "bs:100" in found.signature and "ar:200" in found.signature


def test_equal_translations_show_nothing():
    found = paired_tests(GOOD, list(GOOD), REFERENCES, resamples=100, trials=200)
    assert found.difference == 0
    assert found.randomization_p == 1 and found.bootstrap_p == 1


@pytest.mark.parametrize(("changed", "least"), [(1, 1.0), (3, 0.25)])
def test_a_few_sentences_that_all_become_worse_show_nothing(changed, least):
    """Of the ways to exchange them, two have this difference; sacrebleu alone would give 1/201."""
    worse = BAD[:changed] + REFERENCES[changed:]
    found = paired_tests(worse, REFERENCES, REFERENCES, resamples=10, trials=200)
    assert found.difference < 0
    assert found.randomization_p == pytest.approx(least)


def test_case_counts_unless_told_not_to():
    upper = [line.upper() for line in GOOD]
    assert paired_tests(upper, GOOD, REFERENCES, resamples=10, trials=10).difference < 0
    alike = paired_tests(upper, GOOD, REFERENCES, lowercase=True, resamples=10, trials=10)
    assert alike.difference == 0


def test_another_test_set_is_refused():
    with pytest.raises(ValueError, match="59 and 60 translations of 60"):
        paired_tests(GOOD[1:], BAD, REFERENCES)
