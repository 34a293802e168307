"""Perplexity, bits and nats: from an evaluation to a score."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from norm_lab.config.configuration import read_configuration
from norm_lab.metrics import METRICS
from norm_lab.metrics.language_model import LanguageModelLoss
from norm_lab.run.flags import training_flags
from norm_plugin.checkpoints.evaluate_lm import Evaluation, Window, window_of
from norm_plugin.io.command_line import CommandError, DivergedError

LOSSES = {name: metric for name, metric in METRICS.items() if isinstance(metric, LanguageModelLoss)}
EVALUATION = Evaluation(1005, 3.00001, windows=[Window(7, 2, 1.00004), Window(3, 4, 0.5)])


def corpus(folder, unit="character"):
    """A prepared corpus of 1,000 tokens and the ends of 5 lines."""
    counts = {"tok": {"test.txt": {"lines": 5, "tokens": 1000}}}
    manifest = {"source": "txt", "settings": {"unit": unit}, "counts": counts}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    ("name", "unit", "expected"),
    [("perplexity", "word", 8.0), ("bits", "character", 3.0), ("nats", "character", 2.0794)],
)
def test_three_bits_a_token(name, unit, expected, tmp_path):
    score = METRICS[name].scores(EVALUATION, corpus(tmp_path, unit), "test")["loss"]
    assert (score["score"], score["tokens"]) == (expected, 1005)
    assert score["label"].startswith(f"{METRICS[name].title}, test")
    assert METRICS[name].loss_unit == f"bits per {unit}"  # as fairseq prints them
    assert METRICS[name].from_bits(1.0) == pytest.approx(
        {8.0: 2, 3.0: 1}.get(expected, math.log(2))
    )


def test_a_validation_text_in_the_place_of_a_test_is_called_so(tmp_path):
    data = corpus(tmp_path)
    (data / "tok").mkdir()
    (data / "tok/valid.txt").write_text("t o\n")
    (data / "tok/test.txt").write_text("t o b e\n")

    def label():
        return METRICS["nats"].scores(EVALUATION, data, "test")["loss"]["label"]

    assert label() == "nats per character, test, best checkpoint in validation"
    (data / "tok/test.txt").write_text("t o\n")
    assert "nats per character, validation text, as the corpus has no test, best" in label()


@pytest.mark.parametrize("metric", LOSSES.values(), ids=list(LOSSES))
def test_a_corpus_of_another_unit(metric, tmp_path):
    other = {"word": "character", "character": "word"}[metric.unit]
    with pytest.raises(CommandError, match=f"needs a corpus of {metric.unit}s, .* of {other}s"):
        metric.scores(EVALUATION, corpus(tmp_path, other), "test")
    assert not metric.higher_is_better


def test_an_evaluation_of_another_text(tmp_path):
    with pytest.raises(CommandError, match="900 tokens were evaluated, .* has 1,005"):
        METRICS["nats"].scores(replace(EVALUATION, tokens=900), corpus(tmp_path), "test")


def test_a_perplexity_that_no_float_holds(tmp_path):
    evaluation = replace(EVALUATION, bits=1500.0)
    with pytest.raises(DivergedError, match="the loss is 1500.0 bits per word"):
        METRICS["perplexity"].scores(evaluation, corpus(tmp_path, "word"), "test")


def test_windows_are_kept_in_the_order_of_the_text_to_four_digits():
    assert METRICS["bits"].window_losses(EVALUATION) == [(4, 0.5), (2, 1.0)]


@pytest.mark.parametrize("score", [-math.inf, math.nan])
def test_a_token_of_probability_zero_is_a_divergence(score):
    with pytest.raises(DivergedError, match="0 or NaN: the model has diverged"):
        window_of(0, [-1.0, score])


def test_the_evaluation_has_the_context_of_the_training():
    config = read_configuration("wikitext103")
    flags = METRICS["perplexity"].flags("", config)
    assert flags == [
        *("--tokens-per-sample", "80", "--batch-size", "60"),
        *("--softmax-batch", "1024", "--windows"),
    ]
    assert "--softmax-batch" not in training_flags(config)
    config["task"]["tokens_per_sample"] = 256
    own = METRICS["perplexity"].flags("", config)
    assert own == ["--tokens-per-sample", "256", *flags[2:]]
    config["task"]["sample_break_mode"] = "eos"
    sentences = METRICS["perplexity"].flags("", config)
    assert sentences == [*own[:4], "--sample-break-mode", "eos", *own[4:]]
    config["task"]["add_bos_token"] = True
    with_first = METRICS["perplexity"].flags("", config)
    assert with_first == [*sentences[:6], "--add-bos-token", *sentences[6:]]


def test_a_text_in_segments_is_evaluated_in_one_row_with_the_memory_of_the_recipe():
    config = read_configuration("enwik8")
    assert METRICS["bits"].flags("", config) == [
        *("--tokens-per-sample", "512", "--batch-size", "22"),
        *("--task", "truncated_bptt_lm", "--batch-size", "1"),
        *("--model-overrides", "{'mem_len': 2100, 'clamp_len': 820, 'same_length': True}"),
        "--windows",
    ]
    assert "--model-overrides" not in training_flags(config)
    plain = METRICS["bits"].flags("", read_configuration("enwik8_plain"))
    assert plain == ["--tokens-per-sample", "512", "--batch-size", "22", "--windows"]


def test_the_first_token_of_a_text_may_be_left_out_and_a_remark_is_part_of_the_label(tmp_path):
    data = corpus(tmp_path, "word")
    evaluation = replace(EVALUATION, tokens=1004, remarks=["it sees all"])
    scores = METRICS["perplexity"].scores(evaluation, data, "test")
    score, loss = scores["loss"], scores["test_loss"]
    assert (score["score"], loss["score"], score["tokens"]) == (8.0, 3.0, 1004)
    assert score["label"].endswith("validation; it sees all")
