"""What the papers report beside results: scores, claims and figures."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path

import pytest

from norm_lab.results.result import SCHEMA, write_result
from norm_lab.study.significance import Verdict
from norm_plugin.norms import NORM_TYPES
from papers import (
    DIFFERENCES,
    LINES,
    NORMS,
    NOT_RUN,
    PUBLISHED,
    claims_table,
    outcome_of,
    published_table,
    recorded_figures_table,
    reproduction_table,
)
from verdicts import Outcome

ROOT = Path(__file__).resolve().parents[2]


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_every_published_score_is_of_a_norm_of_ours():
    for papers in PUBLISHED.values():
        assert all(len(scores) == len(NORMS[paper]) for paper, scores in papers.items())
    names = {norm.partition(" ")[0] for norms in NORMS.values() for norm in norms}
    assert names <= set(NORM_TYPES)


# ---- scores of translation ------------------------------------------------------------------


def write(folder, experiment, norm, seed, training_pairs=5_000_000, **bleu):
    result = {"schema": SCHEMA, "experiment": experiment, "norm": norm, "seed": seed}
    result["data"] = {"training_pairs": training_pairs}
    result["metric"] = "bleu"
    result["run"] = {"arm": {"norm": norm, "placement": "post"}}
    result["scores"] = {kind: {"score": score} for kind, score in bleu.items()}
    write_result(result, folder)


def measured(folder, experiment, paper, norm):
    """The last cell of the one row of a paper and a norm."""
    table = rows(published_table(experiment, folder))
    ((*_, cell),) = [row for row in table if row[0].startswith(paper) and row[1] == norm]
    return cell


def test_a_result_stands_beside_the_paper_whose_recipe_it_took(tmp_path):
    write(tmp_path, "iwslt14_de_en_powernorm", "layernorm", 1, tokenized=34.0)
    write(tmp_path, "iwslt14_de_en_powernorm", "layernorm", 2, tokenized=35.0)
    write(tmp_path, "iwslt14_de_en_powernorm", "powernorm", 1, tokenized=35.2)
    write(tmp_path, "iwslt14_de_en_powernorm_smoke", "batchnorm", 1, tokenized=1.0)
    for paper, norm, cell in (
        ("PowerNorm", "`layernorm`", "34.50 (2 seeds)"),
        ("PowerNorm", "`powernorm`", "35.20 (one seed)"),
        ("PowerNorm", "`batchnorm`", NOT_RUN),
        ("AdaNorm", "`layernorm`", NOT_RUN),
        ("Admin", "`layernorm` (pre-norm)", NOT_RUN),
    ):
        assert measured(tmp_path, "iwslt14_de_en", paper, norm) == cell


@pytest.mark.parametrize("training_pairs", [None, 5_000])
def test_a_run_on_a_part_of_the_corpus_is_not_the_papers(training_pairs, tmp_path):
    write(tmp_path, "iwslt15_en_vi_adanorm", "adanorm", 1, training_pairs, tokenized=12.0)
    assert measured(tmp_path, "iwslt15_en_vi", "AdaNorm", "`adanorm`") == NOT_RUN


def test_on_wmt14_the_score_with_compounds_split_counts(tmp_path):
    write(tmp_path, "wmt14_en_de_adanorm", "adanorm", 1, tokenized=26.0, compound_split=28.0)
    assert measured(tmp_path, "wmt14_en_de", "AdaNorm", "`adanorm`") == "28.00 (one seed)"


# ---- AdaNorm's scores and claims on classification ------------------------------------------


def write_rt(folder, **scores):
    """Results of the norms of the claims on three splits of RT: 75, 76, 77 but for ``scores``."""
    for norm in NORMS["AdaNorm (Xu et al. 2019)"]:
        for seed, score in enumerate(scores.get(norm.replace("-", "_"), (75.0, 76.0, 77.0)), 1):
            data = {"corpus": "rt", "checksum": f"of {seed}", "settings": {"split_seed": seed}}
            data["training_pairs"] = 10**9  # the splits hardly overlap
            result = {"schema": SCHEMA, "experiment": "rt", "norm": norm, "seed": seed}
            result["run"] = {"arm": {"norm": norm, "placement": "pre"}}
            result |= {"metric": "accuracy", "data": data}
            result["scores"] = {"accuracy": {"score": score, "sentences": 100}}
            result["settings"] = {"model": {"norm_placement": "pre"}}
            write_result(result, folder)


def test_the_two_intervals(tmp_path):
    write_rt(tmp_path, none=(70.0, 70.1, 70.2))
    none, layernorm = rows(reproduction_table("rt", tmp_path))[2:4]
    # deviation 1, t 4.303 for 2 degrees of freedom: 4.303 / sqrt(3), and 4.303 * sqrt(1 + 1 / 3)
    assert layernorm[:6] == ["`layernorm`", "77.21", "76.00", "3", "73.52 to 78.48", "yes"]
    assert layernorm[6:] == ["71.03 to 80.97", "yes"]
    assert none[5] == "no"


def test_claims_are_of_differences_seed_by_seed(tmp_path):
    write_rt(tmp_path, adanorm=(76.0, 77.1, 77.9), none=(76.0, 77.1, 77.9))
    better, worse, *_ = rows(claims_table("rt", tmp_path))[2:]
    assert better[1:4] == ["`adanorm` minus `layernorm`", "+0.29", "+1.00"]
    assert (better[-1], worse[-1]) == ("reproduced", "contradicted")


def test_a_loss_is_another_family_and_lower_is_better():
    table = claims_table("sst5", ROOT / "results", "valid_loss")
    assert "Gain and bias" not in table  # no margin is declared for it
    adanorm = rows(table)[2]
    assert float(adanorm[2]) < 0 and adanorm[-1] == "as the paper, here"  # a loss is not theirs
    *_, derivatives = rows(table)  # on SST5 the paper has the opposite order
    assert float(derivatives[2]) < 0 and derivatives[-1] == "differs here"


@pytest.mark.parametrize(
    ("verdict", "wanted", "expected"),
    [
        (Verdict.BETTER, Verdict.BETTER, Outcome.AGREES),
        (Verdict.WORSE, Verdict.BETTER, Outcome.OPPOSITE),
        (Verdict.EQUIVALENT, Verdict.EQUIVALENT, Outcome.AGREES),
        (Verdict.BETTER, Verdict.EQUIVALENT, Outcome.OPPOSITE),
        (Verdict.UNDECIDED, Verdict.EQUIVALENT, Outcome.OPEN),
        (Verdict.NOT_TESTED, Verdict.BETTER, Outcome.OPEN),
    ],
)
def test_what_a_verdict_says_of_a_claim(verdict, wanted, expected):
    assert outcome_of(verdict, wanted) == expected


# ---- PowerNorm's figures of statistics over training ----------------------------------------

FOLDER = ROOT / "results" / "multi30k_cpu"
FIRST_NORM = "encoder.layers.0.self_attn_layer_norm"


def mean_of(norm: str, value: str, part: slice) -> float:
    """Over both seeds and a part of the updates, at the first norm, from the kept files."""
    numbers = []
    with gzip.open(FOLDER / "outputs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["norm"] == norm and line["seed"] in (1, 2):
                numbers += line["statistics"]["record"]["sites"][FIRST_NORM][value][part]
    return statistics.mean(numbers)


def test_rows_of_figures_are_means_of_the_kept_files():
    table = rows(recorded_figures_table(FOLDER))[2:]
    assert len(table) == len(LINES) + len(DIFFERENCES)
    second, last = slice(7, 14), slice(68, 75)  # of 75 updates
    variance = table[LINES.index(("powernorm-2", "distance_variance", "batchnorm"))]
    for cell, part in zip(variance[3:5], (second, last)):
        assert cell.split()[0] == f"{mean_of('batchnorm', 'distance_variance', part):.2g}"
    less = mean_of("powernorm-v", "distance_square", second)
    less -= mean_of("batchnorm", "distance_variance", second)
    assert table[len(LINES)][3].split()[0] == f"{less:.2g}"
    assert {row[6] for row in table} == {"2"}
