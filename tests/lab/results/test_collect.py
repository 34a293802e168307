from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_run import DIM, FFN, WORDS, run_state, write_dictionaries

from fake_runs import spec_of
from norm_lab.config.spec import RunSpec
from norm_lab.engine.execution import write_run
from norm_lab.engine.state import DONE, Record, Status, write_status
from norm_lab.metrics.bleu import TextForm, score_sacrebleu, text_form
from norm_lab.results.folder import read_folder
from norm_lab.results.result import collect_result, describe_model, describe_training, write_result
from norm_lab.results.table import read_results
from norm_plugin.checkpoints.average import average_checkpoints
from norm_plugin.checkpoints.files import save_checkpoint
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import read_lines
from norm_plugin.models.plan import RECORDS
from norm_plugin.models.recording import RecordFile

DATA = Path(__file__).parents[1] / "data"
LOSSES = "2026-01-01 12:00:00 | INFO | train | epoch 001 | loss 9.5 | num_updates 30 | lr 0.1"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A prepared corpus, as far as it takes to build a model and to score."""
    folder = tmp_path_factory.mktemp("prepared")
    write_dictionaries(folder / "bin")
    (folder / "raw").mkdir()
    shutil.copy(DATA / "reference.de", folder / "raw" / "test.de")
    manifest = {"corpus": "tiny", "source": "en", "target": "de", "checksum": "c0ffee"}
    manifest["counts"] = {"tok": {"train.en": {"lines": 9}}, "bpe": {"train.en": {"lines": 7}}}
    manifest["settings"] = {"lowercase": True}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def train_state(prepared):
    """``train_state(*flags)``: a checkpoint's content as fairseq-train would store it."""
    return partial(run_state, prepared / "bin")


def attention(dim: int) -> int:
    return 4 * (dim * dim + dim)


FEED_FORWARD = 2 * DIM * FFN + FFN + DIM
WITHOUT_NORMS = WORDS * DIM + 3 * attention(DIM) + 2 * FEED_FORWARD


def test_size_and_sites_of_a_model(tmp_path, prepared, train_state) -> None:
    path = tmp_path / "model.pt"
    torch.save(train_state("--norm-type=rmsnorm", "--norm-type-decoder=layernorm"), path)
    summary = describe_model(path, prepared / "bin")
    # RMSNorm has a weight, LayerNorm a weight and a bias; tied embeddings count once.
    assert summary["norm_parameters"] == 2 * DIM + 3 * 2 * DIM
    assert summary["parameters"] == WITHOUT_NORMS + summary["norm_parameters"]
    assert summary["sites"] == {
        "encoder-self": "rmsnorm",
        "encoder-ffn": "rmsnorm",
        "decoder-self": "layernorm",
        "decoder-cross": "layernorm",
        "decoder-ffn": "layernorm",
    }


def test_a_stock_model_has_no_sites(tmp_path, prepared, train_state) -> None:
    path = tmp_path / "model.pt"
    torch.save(train_state("--arch=transformer", "--encoder-normalize-before"), path)
    summary = describe_model(path, prepared / "bin")
    assert summary["sites"] is None
    assert summary["norm_parameters"] == 6 * 2 * DIM
    assert summary["parameters"] == WITHOUT_NORMS + summary["norm_parameters"]


def test_training_facts(train_state) -> None:
    assert describe_training(train_state()) == {
        "updates": 90,
        "epochs": 3,
        "seconds": 33.2,
        "updates_per_second": 2.5,
        "tokens_per_second": 250.0,
        "measured_updates": 50,
        "best_valid": {"metric": "loss", "value": 2.5},
    }


def test_several_workers_store_times_as_tensors() -> None:
    state = {"extra_state": {"previous_training_time": torch.tensor(33.25)}}
    assert describe_training(state)["seconds"] == 33.2


def test_what_a_checkpoint_lacks_is_none() -> None:
    summary = describe_training({"model": {}})
    best = summary.pop("best_valid")
    assert set(summary.values()) == {None}
    assert set(best.values()) == {None}
    state = {"extra_state": {"best": float("nan")}}
    assert describe_training(state)["best_valid"]["value"] is None


@pytest.fixture
def finished(tmp_path, prepared, train_state) -> Path:
    """The folder of a finished run, of which only the result is missing."""
    spec = spec_of("toy", "norm=rmsnorm", "seed=3", "--work", tmp_path)
    spec = replace(spec, data=prepared, experiment="tiny")
    write_run(spec)
    spec.checkpoints.mkdir()
    for name in ("1", "2", "_last"):
        torch.save(train_state("--norm-type=rmsnorm"), spec.checkpoints / f"checkpoint{name}.pt")
    paths = [spec.checkpoints / f"checkpoint{epoch}.pt" for epoch in (1, 2)]
    save_checkpoint(average_checkpoints(paths), spec.evaluated)
    shutil.copy(DATA / "generate.txt", spec.evaluation_log)
    spec.log_of("train").parent.mkdir()
    spec.log_of("train").write_text(f"{LOSSES}\n", encoding="utf-8")
    write_status(spec.folder, Status(DONE, stages={"train": Record("key", memory=3 * 2**30)}))
    return spec.folder


def collect(folder: Path) -> Path:
    """Write the result of the run in a folder; return its path."""
    spec = RunSpec.read(folder)
    return write_result(collect_result(spec, spec.evaluation_log), spec.results)


def test_each_checkpoint_is_read_once(finished, monkeypatch) -> None:
    read, load = [], torch.load

    def counted(file, *args, **kwargs):
        read.append(file.name)
        return load(file, *args, **kwargs)

    monkeypatch.setattr(torch, "load", counted)
    collect(finished)
    names = ("averaged.pt", "checkpoints/checkpoint_last.pt")
    assert sorted(read) == [str(finished / name) for name in names]


def test_a_result_file(tmp_path, finished) -> None:
    path = collect(finished)
    assert path == tmp_path / "results" / "tiny" / "rmsnorm-seed3.json"
    text = path.read_text(encoding="utf-8")
    result = json.loads(text)
    assert text == json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert result["scores"]["tokenized"]["score"] == 76.55
    assert "note" not in result["scores"]["tokenized"]
    # In these few sentences fairseq's hashes do not collide, so the exact score is the same; half
    # of the last digit that fairseq prints is rounding.
    assert result["scores"]["exact"]["score"] == pytest.approx(76.55, abs=0.005)
    assert "case:lc" in result["scores"]["sacrebleu"]["signature"]
    assert result["scores"]["sacrebleu"]["reference"] == "raw/test.de"
    assert result["averaged_from"] == ["checkpoint1.pt", "checkpoint2.pt"]
    assert result["running_stats"] == "average"
    assert result["data"]["checksum"] == "c0ffee"
    assert result["data"]["training_pairs"] == 7
    assert result["settings"]["model"]["norm_type"] == "rmsnorm"
    assert result["settings"]["common"]["seed"] == 3
    assert result["training"]["updates"] == 90
    assert result["training"]["peak_memory"] == 3 * 2**30
    train = [{"epoch": 1, "updates": 30, "loss": 9.5}]
    assert result["curves"] == {"train": train, "train_inner": [], "valid": []}
    assert result["sites"]["encoder-self"] == "rmsnorm"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", result["date"])
    assert result["run"]["arm"] == {"norm": "rmsnorm", "placement": "pre", "changes": {}}
    assert not re.search(r'"[^"]*(/home|/tmp|~/)', text)
    assert str(tmp_path.parent) not in text
    (run,) = read_folder(path.parent).finished
    assert run["scores.tokenized.score"] == 76.55


def test_the_translations_that_were_scored_are_kept(tmp_path, finished, prepared) -> None:
    RecordFile(finished / "checkpoints" / RECORDS, {"every": 1, "norms": "", "sites": {}}).append(
        {"update": 1, "sites": {}, "layers": {}}
    )
    (finished / "status.json").unlink()
    collect(finished)
    (run,) = read_results(tmp_path / "results" / "tiny").to_dict("records")
    references = read_lines(prepared / "raw" / "test.de")
    again = score_sacrebleu(run["translations"], references, lowercase=True)["score"]
    assert again == run["scores.sacrebleu.score"]
    assert run["statistics"]["record"]["updates"] == [1]
    assert [each["shape"] for each in run["statistics"]["spectra"]] == [[WORDS, DIM]]
    assert "training.peak_memory" not in run


def test_a_wrong_seed_is_refused(finished) -> None:
    run = finished / "run.json"
    run.write_text(run.read_text().replace('"seed": 3', '"seed": 2'))
    other = finished.rename(finished.with_name("rmsnorm-seed2"))
    with pytest.raises(CommandError, match="the seed of the run is 2, but .* with seed 3"):
        collect(other)


@pytest.mark.parametrize("name", ["averaged.pt", "checkpoints/checkpoint_last.pt", "generate.log"])
def test_a_missing_input_is_named(tmp_path, finished, name) -> None:
    (finished / name).unlink()
    with pytest.raises(CommandError, match=re.escape(name)):
        collect(finished)
    assert not (tmp_path / "results").exists()


def test_a_model_that_does_not_fit_the_data_is_named(tmp_path, finished, prepared) -> None:
    other = tmp_path / "other"
    shutil.copytree(prepared, other)
    (other / "bin" / "dict.de.txt").write_text("one 1\n")
    (other / "bin" / "dict.en.txt").write_text("one 1\n")
    run = finished / "run.json"
    run.write_text(run.read_text().replace(f'"data": "{prepared}"', f'"data": "{other}"'))
    with pytest.raises(CommandError, match=r"(?s)averaged\.pt.*size mismatch"):
        collect(finished)


@pytest.mark.parametrize(
    ("manifest", "form"),
    [
        ({"target": "xx", "settings": {"seed": 1}}, TextForm("xx")),
        ({"target": "en", "settings": {"lowercase": True}}, TextForm("en", lowercase=True)),
        (
            {
                "target": "vi",
                "settings": {"subword": "sentencepiece"},
                "scoring": ["tokenized_reference"],
            },
            TextForm("vi", subword="sentencepiece", tokenized_reference=True),
        ),
        ({"target": "de", "scoring": ["compound_split"]}, TextForm("de", compound_split=True)),
    ],
)
def test_the_manifest_says_how_to_score(manifest, form) -> None:
    assert text_form(manifest) == form
