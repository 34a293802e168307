from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_run import DIM, FFN, WORDS, run_state, write_dictionaries

from norm_lab.metrics.bleu import TextForm, score_sacrebleu, text_form
from norm_lab.results import result
from norm_lab.results.artifacts import STATISTICS, TRANSLATIONS, read_artifact, read_statistics
from norm_lab.results.folder import read_folder
from norm_lab.results.result import describe_model, describe_training, result_command
from norm_lab.results.table import read_results
from norm_plugin.checkpoints.average import average_checkpoints
from norm_plugin.checkpoints.files import save_checkpoint
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.io.files import read_lines, write_text
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


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, train_state) -> Path:
    """The checkpoints of a finished run and their average."""
    folder = tmp_path_factory.mktemp("run")
    paths = [folder / f"checkpoint{epoch}.pt" for epoch in (1, 2)]
    for path in paths:
        torch.save(train_state("--norm-type=rmsnorm"), path)
    save_checkpoint(average_checkpoints(paths), folder / "average.pt")
    return folder


@pytest.fixture
def finished(tmp_path, prepared, run_folder) -> dict[str, str]:
    """The arguments for the result of a finished run."""
    log = tmp_path / "train.log"
    log.write_text(f"{LOSSES}\n", encoding="utf-8")
    (tmp_path / "train.memory").write_text(f"{3 * 2**30}\n")
    return {
        "--train-log": str(log),
        "--memory": str(tmp_path / "train.memory"),
        "--experiment": "tiny",
        "--norm": "rmsnorm",
        "--seed": "3",
        "--checkpoint": str(run_folder / "average.pt"),
        "--last": str(run_folder / "checkpoint2.pt"),
        "--generate-log": str(DATA / "generate.txt"),
        "--data": str(prepared),
        "--out": str(tmp_path / "results"),
    }


def command_line(arguments: dict[str, str]) -> list[str]:
    return [argument for pair in arguments.items() for argument in pair]


def test_each_checkpoint_is_read_once(finished, monkeypatch) -> None:
    read, load = [], torch.load

    def counted(file, *args, **kwargs):
        read.append(file.name)
        return load(file, *args, **kwargs)

    monkeypatch.setattr(torch, "load", counted)
    result_command(command_line(finished))
    assert sorted(read) == sorted([finished["--checkpoint"], finished["--last"]])


def test_a_result_file(tmp_path, finished, capsys) -> None:
    assert result_command(command_line(finished)) == 0
    path = tmp_path / "results" / "tiny" / "rmsnorm-seed3.json"
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
    assert not re.search(r'"[^"]*(/home|/tmp|~/)', text)
    assert str(tmp_path.parent) not in text
    printed = capsys.readouterr().out
    assert "76.55" in printed
    assert str(path) in printed
    assert read_folder(path.parent).results == [result]


def test_the_translations_that_were_scored_are_kept(tmp_path, finished, prepared) -> None:
    record = tmp_path / "record"
    RecordFile(record, {"every": 1, "norms": "", "sites": {}}).append(
        {"update": 1, "sites": {}, "layers": {}}
    )
    del finished["--memory"]
    result_command(command_line({**finished, "--record": str(record)}))
    folder = tmp_path / "results" / "tiny"
    result = json.loads((folder / "rmsnorm-seed3.json").read_text())
    (run,) = read_results(folder).to_dict("records")
    lines = read_artifact(run, TRANSLATIONS).removesuffix("\n").split("\n")
    references = read_lines(prepared / "raw" / "test.de")
    again = score_sacrebleu(lines, references, lowercase=True)["score"]
    assert again == result["scores"]["sacrebleu"]["score"]
    statistics = read_statistics(folder / result["kept"][STATISTICS]["file"])
    assert statistics["record"]["updates"] == [1]
    assert [spectrum["shape"] for spectrum in statistics["spectra"]] == [[WORDS, DIM]]
    assert result["training"]["peak_memory"] is None


def test_a_result_is_written_once_and_complete(tmp_path, finished, monkeypatch) -> None:
    """Who finds it, or is killed after it, finds all that it names."""
    written = []

    def write(path, text):
        kept = json.loads(text)["kept"]
        there = {kind: (path.parent / entry["file"]).exists() for kind, entry in kept.items()}
        written.append((path.name, there))
        write_text(path, text)

    monkeypatch.setattr(result, "write_text", write)
    result_command(command_line(finished))
    assert written == [("rmsnorm-seed3.json", {TRANSLATIONS: True, STATISTICS: True})]


@pytest.mark.parametrize("content", [b"", bytes(11)])
def test_a_peak_memory_that_a_power_cut_left_empty_is_unknown(tmp_path, finished, content) -> None:
    (tmp_path / "train.memory").write_bytes(content)
    result_command(command_line(finished))
    (path,) = tmp_path.glob("results/tiny/*.json")
    assert json.loads(path.read_text())["training"]["peak_memory"] is None


def test_a_users_result_stays_out_of_the_published_ones(tmp_path, finished, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    del finished["--out"]
    assert result_command(command_line(finished)) == 0
    assert (tmp_path / "work" / "results" / "tiny" / "rmsnorm-seed3.json").is_file()
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("seed", ["2", "4"])
def test_a_wrong_seed_is_refused(seed, finished, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        run_command(lambda: result_command(command_line({**finished, "--seed": seed})))
    assert stop.value.code == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: --seed is {seed}, but ")
    assert error.endswith("trained with seed 3")


@pytest.mark.parametrize("flag", ["--checkpoint", "--last", "--generate-log", "--data"])
def test_a_missing_input_is_named(tmp_path, finished, flag) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(CommandError, match=re.escape(missing)):
        result_command(command_line({**finished, flag: missing}))
    assert not (tmp_path / "results").exists()


def test_a_model_that_does_not_fit_the_data_is_named(tmp_path, finished, prepared) -> None:
    shutil.copytree(prepared, tmp_path / "other")
    (tmp_path / "other" / "bin" / "dict.de.txt").write_text("one 1\n")
    (tmp_path / "other" / "bin" / "dict.en.txt").write_text("one 1\n")
    with pytest.raises(CommandError, match=r"(?s)average\.pt.*size mismatch"):
        result_command(command_line({**finished, "--data": str(tmp_path / "other")}))


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
