"""The differences that say what a part of PowerNorm changes."""

from __future__ import annotations

from made_up_results import folder_of, made_up
from norm_plugin.analysis.stats import compare, holm
from norm_plugin.analysis.tables import p_text
from powernorm_parts import NOT_RUN, PARTS, parts_table

SCORES = {
    "layernorm": (35.0, 35.2, 35.1),
    "powernorm": (35.5, 35.7, 35.9),
    "powernorm-layer-scale-groups-0": (33.0, 33.1, 33.3),
    "powernorm-v": (35.4, 35.8, 35.9),
}


def cells_of(table):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


def test_a_row_for_each_part(tmp_path):
    runs = [
        made_up(norm, seed, bleu=score)
        for norm, scores in SCORES.items()
        for seed, score in enumerate(scores, 1)
    ]
    other = made_up("powernorm", bleu=1.0, settings__model={"norm_placement": "post"}, seed=9)
    (folder,) = folder_of(tmp_path, *runs, other)  # of another placement than the baseline
    rows = cells_of(parts_table(folder))
    assert [row[:3] for row in rows] == [
        [part.name, f"`{part.with_it}`", f"`{part.without}`"] for part in PARTS
    ]
    run = [part for part in PARTS if part.with_it in SCORES and part.without in SCORES]
    assert 0 < len(run) < len(PARTS)
    tests = [
        compare(dict(enumerate(SCORES[part.with_it])), dict(enumerate(SCORES[part.without])))
        for part in run
    ]
    corrected = holm([test.p for test in tests])
    for part, row in zip(PARTS, rows):
        if part not in run:
            assert set(row[4:]) == {"-"} and row[3] == NOT_RUN
            continue
        test, p = tests[run.index(part)], corrected[run.index(part)]
        assert row[4] == f"{test.mean:+.2f}"
        assert row[6:] == [p_text(test.p), p_text(test.p_permutation), p_text(p)]
        assert (row[3] == "better") == (p < 0.05)
