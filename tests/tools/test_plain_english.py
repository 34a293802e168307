"""No wording that has to be decoded comes back: tools/plain_english.py."""

from __future__ import annotations

import pytest

from plain_english import PATTERNS, search, search_checkout

MEANT = {
    "How many points a run has, and what it leaves.",  # a run has points
    "runs a second copy of the module",  # it runs a copy
    "`measured` `statistics_input`, `move_statistic`",  # a former name
}


def test_no_line_has_wording_that_has_to_be_decoded():
    found = [
        f"{each.path}:{each.line}: {each.text}; write {PATTERNS[each.pattern].instead}"
        for each in search_checkout()
        if not any(text in each.text for text in MEANT)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("1.86 nats a character", "a for per"),
        ("two seeds an arm", "a for per"),
        ("`powernorm` less `layernorm`", "less for minus"),
        ("PowerNorm less LayerNorm", "less for minus"),
        ('"""Of a copy, which is another norm."""', "docstring that is no sentence"),
        ("a pass that moves the running statistics", "move a statistic"),
        ("a pass in which the statistics moved", "move a statistic"),
        ("def test_a_batch_moves_no_statistic(name):", "move a statistic"),
        ("the batch in work", "vague verb"),
        ("with the recursion looking on", "vague verb"),
        ("one row a norm", "a for per"),
        ("starts a process a node", "a for per"),
        ('"""By hand, from the definition."""', "docstring that is no sentence"),
        ('"""As in early stopping."""', "docstring that is no sentence"),
        ("its gain; None where it has none", "where for if"),
        ("ValueError where a norm differs", "where for if"),
        ("where the norms stand", "stands"),
        ("every other entry stays as it is", "as it is"),
        ("reads a file that is not there", "is there"),
        ("the smallest difference of interest", "of interest"),
        ("u is the input after the layer-scale", "PowerNorm's layer-scale"),
    ],
)
def test_each_pattern_is_found(line, pattern):
    assert [each.pattern for each in search("file.py", line)] == [pattern]


@pytest.mark.parametrize(
    "line",
    [
        "1.86 nats per character",
        "no less than 3",
        "a token of a batch",
        '"""Often a mean."""',
        '"""Whether the model is in training."""',
        "a label of a row",
        "0 stands for the root",
        "where there is a norm",
        "as it is computed in float32",
        "the placement `layer-scale`, and --norm-layer-scale-groups",
    ],
)
def test_other_wording_is_not_found(line):
    assert not list(search("file.py", line))


def test_some_patterns_are_of_code_only():
    """Pages may use such words; there, a sentence gives them their meaning."""
    line = "the norm stands on the residual stream"
    assert [each.pattern for each in search("norm.py", line)] == ["stands"]
    assert not list(search("page.md", line))
