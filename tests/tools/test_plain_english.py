"""No wording that has to be decoded comes back: tools/plain_english.py."""

from __future__ import annotations

import pytest

from plain_english import PATTERNS, search, search_checkout

MEANT = {
    "How many points a run has, and what it leaves.",  # a run has points
    "runs a second copy of the module",  # it runs a copy
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
        ("the batch in work", "vague verb"),
    ],
)
def test_each_pattern_is_found(line, pattern):
    assert [each.pattern for each in search("file.py", line)] == [pattern]


@pytest.mark.parametrize(
    "line",
    ["1.86 nats per character", "no less than 3", "a token of a batch", '"""Often a mean."""'],
)
def test_other_wording_is_not_found(line):
    assert not list(search("file.py", line))
