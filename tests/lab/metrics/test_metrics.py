"""What a metric declares, and the accuracy of a classifier from its predictions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from classifier_run import train_classifier, write_sentences
from tiny_run import run_state, write_dictionaries

from fake_runs import spec_of
from norm_lab.config.configuration import read_configuration
from norm_lab.config.experiments import experiment_names, find_experiment
from norm_lab.engine.execution import write_run
from norm_lab.engine.stages import evaluation_flags, next_key, run_stages
from norm_lab.metrics import AVERAGE, BEST, METRICS, find_metric, register_metric
from norm_lab.report.score_table import score_table
from norm_lab.results.result import collect_result, write_result
from norm_lab.results.table import read_results
from norm_lab.run.flags import training_flags
from norm_plugin.checkpoints.calibration import CalibratedLoss
from norm_plugin.checkpoints.predict import Evaluation, Prediction, evaluate_batch, run
from norm_plugin.checkpoints.predict import main as predict
from norm_plugin.io.command_line import CommandError

FOUND = [Prediction(0, "1", "0", -0.5), Prediction(1, "0", "0", -0.25)]


@pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))
def test_what_every_metric_declares(metric):
    assert metric.checkpoint in (AVERAGE, BEST)
    assert next(iter(metric.columns)) == metric.headline
    assert metric.of_interest > 0
    assert metric.title and metric.loss_unit and metric.stage
    assert metric.text(1 / 3) == f"{1 / 3:.{metric.digits}f}"


def test_an_unknown_or_doubled_metric_is_refused():
    with pytest.raises(CommandError, match="no metric glue; choose from .*bleu"):
        find_metric("glue")
    with pytest.raises(ValueError, match="metric 'bleu' is registered twice"):
        register_metric("bleu")(type(METRICS["bleu"]))


def plan_of(*argv):
    return spec_of(*argv, "--smoke")


def test_a_classifier_has_a_random_split_a_seed_and_no_average(tmp_path):
    plan = plan_of("rt", "seed=7", "--work", str(tmp_path), "--fold-norms")
    train, finish = run_stages(plan)
    assert (train.name, finish.name) == ("train", "finish-folded")
    assert evaluation_flags(plan) == ["--calibrate", "valid", "--fold-norms"]
    assert plan.evaluated == plan.checkpoints / "checkpoint_best.pt"
    assert plan.preparation.options["split_seed"] == 7
    assert plan.data.name == "rt_polarity-split7"


@pytest.mark.parametrize("name", [x for x in experiment_names() if find_experiment(x).words])
def test_a_corpus_of_words_has_no_subword_units(name):
    with pytest.raises(CommandError, match=f"{name} has no subword units; drop subword="):
        plan_of(name, "--subword", "sentencepiece")


def test_every_experiment_evaluates_the_checkpoint_that_its_recipe_keeps():
    for name in experiment_names():
        experiment = find_experiment(name)
        groups = [f"recipe={experiment.recipe}"] if experiment.recipe else []
        config = read_configuration(experiment.config.stem, groups)
        averaged = not config["checkpoint"].get("no_epoch_checkpoints")
        assert find_metric(experiment.metric).checkpoint == (AVERAGE if averaged else BEST), name
        # text without subword units is that of the tasks but translation
        assert experiment.words == (config["task"]["_name"] != "translation"), name


def test_the_words_of_a_translation_are_those_of_its_finished_runs(tmp_path):
    """A change of them would run every stage again."""
    plan = plan_of("toy", "--work", str(tmp_path))
    train, finish = run_stages(plan)
    # there is no data yet
    assert train.key == next_key("", ("train", *training_flags(plan.settings)))
    argv = ("--last-updates", "2", "fairseq_cli.generate", "--remove-bpe")
    argv += ("--required-batch-size-multiple", "1")
    argv += ("--beam", "2", "--lenpen", "1.0", "--max-len-b", "10", "toy_smoke", "layernorm", "1")
    assert finish.key == next_key(train.key, argv)


def test_the_predictions_must_be_of_the_corpus(tmp_path):
    (tmp_path / "tok").mkdir()
    text = tmp_path / "tok/test.label"
    text.write_text("1\n1\n")
    evaluation = Evaluation(FOUND, CalibratedLoss(1.5, 1.2500004, (2, 3)))
    with pytest.raises(CommandError, match="labels of the 2 .* are not the 2 of .*test.label"):
        METRICS["accuracy"].scores(evaluation, tmp_path, "test")
    text.write_text("1\n0\n")
    scores = METRICS["accuracy"].scores(evaluation, tmp_path, "test")
    accuracy = scores["accuracy"]
    assert (accuracy["score"], accuracy["correct"], accuracy["sentences"]) == (50.0, 1, 2)
    assert (scores["loss"]["score"], scores["calibrated_loss"]["score"]) == (1.5, 1.25)


def predicted(capsys, *argv):
    """The lines that the command prints."""
    capsys.readouterr()
    assert predict(list(map(str, argv))) == 0
    return capsys.readouterr().out.splitlines()


def test_from_a_trained_classifier_to_a_table(tmp_path, capsys, caplog):
    data = write_sentences(tmp_path / "data")
    norm = ("--norm-type", "batchnorm", "--norm-layer-scale-groups", "0")  # it can be folded
    spec = replace(plan_of("rt", "norm=batchnorm", "--work", tmp_path), data=data.parent)
    write_run(spec)
    folder = train_classifier(data, spec.checkpoints, "--max-epoch", "8", *norm)
    best = str(folder / "checkpoint_best.pt")
    *_, end = predicted(capsys, data, "--path", best, "--gen-subset", "valid")
    of_fairseq = torch.load(best, weights_only=True)["extra_state"]["best"]
    accuracy = float(end.split("= ")[1].split(",")[0])
    assert accuracy == pytest.approx(of_fairseq, abs=0.055)  # each has its rounding: 1, 2 digits
    lines = predicted(capsys, data, "--path", best)
    assert [line.split("\t")[0] for line in lines[:-1]] == [f"P-{n}" for n in range(12)]
    with caplog.at_level("INFO"):
        folded = predicted(capsys, data, "--path", best, "--fold-norms")
    assert "encoder-final: batchnorm folded" in caplog.text
    assert [line.split("\t")[:3] for line in folded] == [line.split("\t")[:3] for line in lines]
    capsys.readouterr()
    evaluation = run([str(data), "--path", best, "--calibrate", "valid"])
    *same, calibration = capsys.readouterr().out.splitlines()
    assert same == lines  # no dropout
    assert [
        f"P-{number}\t{label}\t{predicted}\t{log_p:.4f}"
        for number, label, predicted, log_p in evaluation.predictions
    ] == lines[:-1]
    assert f"loss = {evaluation.calibration.loss:.6f} bits, calibrated = " in calibration
    write_result(collect_result(spec, evaluation), spec.results)
    runs = read_results(spec.result.parent)
    sites = [f"sites.{site}" for site in ("encoder-self", "encoder-ffn", "encoder-final")]
    assert set(runs[sites].iloc[0]) == {"batchnorm"}
    assert runs["scores.loss.score"].iloc[0] > 0
    assert runs["scores.calibrated_loss.score"].iloc[0] >= 0
    assert runs["score"].iloc[0] > 90  # percent: the first word tells the label
    assert "| batchnorm | 1 |" in score_table(runs) and "accuracy (%)" in score_table(runs)


def test_sentences_that_cannot_be_read(tmp_path):
    data = write_sentences(tmp_path / "data")
    path = train_classifier(data, tmp_path / "run", "--max-update", "1") / "checkpoint_last.pt"
    longer = write_sentences(tmp_path / "longer")
    for end in ("bin", "idx"):  # the labels of another split, and so of another number
        shutil.copy(longer / "label" / f"train.{end}", longer / "label" / f"test.{end}")
    unlabeled, cut = (write_sentences(tmp_path / name) for name in ("unlabeled", "cut"))
    (unlabeled / "label" / "test.idx").unlink()
    (cut / "input0" / "test.bin").write_bytes(b"ab")
    without = write_sentences(tmp_path / "without")
    (without / "input0" / "dict.txt").unlink()
    for argv, message in (
        ([data, "--gen-subset", "dev"], "cannot make batches of the dev sentences in"),
        ([tmp_path / "none"], "folder .*none, with the data of .* does not exist; give the folder"),
        ([unlabeled], "has no labels for the test sentences"),
        ([cut], "cannot read the batches of the data in .*cut"),
        ([without], "cannot build the model of .*dict.txt"),
        ([longer], "test sentences in .*dataset lengths must match"),
    ):
        with pytest.raises(CommandError, match=message):
            predict([*map(str, argv), "--path", str(path)])


def test_a_diverged_classifier_predicts_nothing():
    batch = {"id": torch.tensor([0]), "target": torch.tensor([0]), "net_input": {}}
    for value in (float("nan"), float("inf")):
        model = torch.nn.Linear(1, 1)
        model.forward = lambda value=value, **_: (torch.tensor([[0.0, value]]), None)
        task = SimpleNamespace(cfg=SimpleNamespace(classification_head_name="head"))
        with pytest.raises(CommandError, match="its training has diverged"):
            list(evaluate_batch(model, task, batch))


def test_a_translation_model_is_no_classifier(tmp_path):
    data = write_dictionaries(tmp_path / "bin")
    torch.save(run_state(data), tmp_path / "translation.pt")
    with pytest.raises(CommandError, match="norm_transformer of the task translation, not a class"):
        predict([str(data), "--path", str(tmp_path / "translation.pt")])
