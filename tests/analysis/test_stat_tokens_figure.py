"""The score against the batch of the statistics, from settings that differ in it alone."""

from __future__ import annotations

import csv
import io

from made_up_results import folder_of, made_up
from norm_plugin.analysis.stat_tokens import stat_tokens_figure
from norm_plugin.analysis.study import read_study


def run(label, bleu, tokens=None, seed=1):
    """A run of batchnorm; every batch has 4,096 tokens."""
    model = {"norm_placement": "pre", "norm_type": "batchnorm", "norm_stat_tokens": tokens}
    differs = {} if tokens is None else {"model.norm_stat_tokens": tokens}
    dataset = {"max_tokens": 4096}
    result = made_up(label, seed, bleu, settings__model=model, settings__dataset=dataset)
    return {**result, "differs": differs}


def test_a_norm_is_a_line_over_its_batches(tmp_path):
    runs = [
        run("batchnorm", 35.0),
        run("batchnorm-stat-tokens-512", 33.0, 512),
        run("batchnorm-stat-tokens-512", 34.0, 512, seed=2),
        run("batchnorm-stat-tokens-1024", 34.5, 1024),
        made_up(settings__dataset={"max_tokens": 4096}),
    ]
    figure = stat_tokens_figure(read_study(folder_of(tmp_path, *runs)))
    rows = list(csv.DictReader(io.StringIO(figure.data)))
    found = [(row["setting"], row["tokens"], row["seeds"], row["mean"]) for row in rows]
    assert found == [
        ("batchnorm, pre", "512", "2", "33.5"),
        ("batchnorm, pre", "1024", "1", "34.5"),
        ("batchnorm, pre", "4096", "1", "35.0"),
    ]
    assert float(rows[0]["low"]) < 33.5 < float(rows[0]["high"]) and rows[1]["low"] == ""


def test_one_batch_for_every_norm_makes_no_figure(tmp_path):
    runs = [run("batchnorm", 35.0), made_up(settings__dataset={"max_tokens": 4096})]
    assert stat_tokens_figure(read_study(folder_of(tmp_path, *runs))) is None
