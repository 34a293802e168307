"""The blocks of published numbers and of plain commands."""

from __future__ import annotations

import shlex

import pytest

from norm_plugin.experiments.recipes import read_recipe, training_flags
from norm_plugin.experiments.results import SCHEMA, write_result
from norm_plugin.norms import NORM_TYPES
from published import NOT_RUN, PUBLISHED, published_table
from recipe_commands import WIDTH, command_lines


def measured(table, paper, norm):
    """The last cell of the one row of a paper and a norm."""
    (row,) = [row for row in table.splitlines() if row.startswith(f"| {paper}") and norm in row]
    return row.split("|")[-2].strip()


def write(folder, experiment, norm, seed, training_pairs=5_000_000, **bleu):
    result = {"schema": SCHEMA, "experiment": experiment, "norm": norm, "seed": seed}
    result["data"] = {"training_pairs": training_pairs}
    result["metric"] = "bleu"
    result["scores"] = {kind: {"score": score} for kind, score in bleu.items()}
    write_result(result, folder)


def test_nothing_is_measured_until_it_is_run(tmp_path):
    for experiment, rows in PUBLISHED.items():
        table = published_table(experiment, tmp_path)
        assert table.count(NOT_RUN) == len(rows)


def test_a_result_stands_beside_the_paper_whose_recipe_it_took(tmp_path):
    write(tmp_path, "iwslt14_de_en_powernorm", "layernorm", 1, tokenized=34.0)
    write(tmp_path, "iwslt14_de_en_powernorm", "layernorm", 2, tokenized=35.0)
    write(tmp_path, "iwslt14_de_en_powernorm", "powernorm", 1, tokenized=35.2)
    write(tmp_path, "iwslt14_de_en_powernorm_smoke", "batchnorm", 1, tokenized=1.0)
    table = published_table("iwslt14_de_en", tmp_path)
    assert measured(table, "PowerNorm", "`layernorm`") == "34.50 (2 seeds)"
    assert measured(table, "PowerNorm", "`powernorm`") == "35.20 (one seed)"
    assert measured(table, "PowerNorm", "`batchnorm`") == NOT_RUN
    assert measured(table, "AdaNorm", "`layernorm`") == NOT_RUN
    assert measured(table, "Admin", "pre-norm") == NOT_RUN


@pytest.mark.parametrize("training_pairs", [None, 5_000])
def test_a_run_on_a_part_of_the_corpus_is_not_the_papers(training_pairs, tmp_path):
    write(tmp_path, "iwslt15_en_vi_adanorm", "adanorm", 1, training_pairs, tokenized=12.0)
    assert measured(published_table("iwslt15_en_vi", tmp_path), "AdaNorm", "`adanorm`") == NOT_RUN


def test_on_wmt14_the_score_with_compounds_split_counts(tmp_path):
    write(tmp_path, "wmt14_en_de_adanorm", "adanorm", 1, tokenized=26.0, compound_split=28.0)
    table = published_table("wmt14_en_de", tmp_path)
    assert measured(table, "AdaNorm", "`adanorm`") == "28.00 (one seed)"


def test_every_norm_of_the_papers_is_one_of_ours():
    assert {row.norm for rows in PUBLISHED.values() for row in rows} <= set(NORM_TYPES)


def test_a_command_is_the_recipe_word_by_word():
    text = command_lines("iwslt14_de_en", ["norm=powernorm"])
    assert all(len(line) <= WIDTH + 6 for line in text.splitlines())
    train, average, generate = shlex_lines(text)
    recipe = read_recipe("iwslt14_de_en", ["norm=powernorm"])
    assert train == ["fairseq-train", "DATA", *training_flags(recipe)]
    assert average[-4:] == ["--last-epochs", "10", "--output", "averaged.pt"]
    assert generate[-4:] == ["--beam", "5", "--lenpen", "1.0"]


def test_the_commands_of_a_classifier_average_nothing():
    train, predict = shlex_lines(command_lines("sst5"))
    assert train == ["fairseq-train", "DATA", *training_flags(read_recipe("sst5"))]
    module = ["norm-plugin", "predict", "DATA"]
    assert predict[:3] == module and predict[-1] == "checkpoints/checkpoint_best.pt"


def shlex_lines(text):
    """The words of each command of a code block, as a shell reads them."""
    code = text.removeprefix("```bash\n").removesuffix("\n```").replace("\\\n", "")
    return [shlex.split(line) for line in code.splitlines()]
