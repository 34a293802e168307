"""What lies beside a result: written, read, and refused where it belongs to another run."""

from __future__ import annotations

import argparse
import gzip
import json

import pytest
import torch

from norm_plugin.commands.command_line import CommandError
from norm_plugin.experiments import keep
from norm_plugin.experiments.bleu import score_sacrebleu
from norm_plugin.experiments.kept import (
    ENDINGS,
    STATISTICS,
    TRANSLATIONS,
    archive_kept,
    compact,
    keep_files,
    read_kept,
    read_statistics,
)
from norm_plugin.models.recording import RecordFile

HYPOTHESES = ["ein hund läuft über die wiese .", "zwei hunde\u2028schlafen ."]
REFERENCES = ["ein hund läuft über eine wiese .", "zwei hunde schlafen ."]
TEXT = "".join(f"{line}\n" for line in HYPOTHESES)
SITES = {"encoder.a": 4, "decoder.b": 4}


def write_checkpoint(path, weight=None):
    """A checkpoint of a model with a shared embedding, or without one."""
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    model = {} if weight is None else dict.fromkeys(names, weight)
    settings = argparse.Namespace(_name="norm_transformer", norm_type="rmsnorm")
    torch.save({"cfg": {"model": settings}, "args": None, "model": model}, path)
    return path


def write_record(path):
    """Three updates; the second one lacks a site, and a value is not finite."""
    file = RecordFile(path, {"every": 10, "norms": "norms: pre", "sites": SITES})
    for update in (1, 11, 21):
        a = {"g_mu": 0.123456, "gamma_over_psi": [1.0, 2.0], "batch_mean": [1.0], "positions": 9.0}
        sites = {"encoder.a": a} if update == 11 else {"encoder.a": a, "decoder.b": {"g_mu": 4.0}}
        layers = {"encoder.layers.0": {"hidden_rms": float("inf") if update == 21 else update}}
        file.append({"update": update, "sites": sites, "layers": layers})
    return path


@pytest.fixture
def kept(tmp_path):
    """The JSON file of a result, and the result with what was kept."""
    path = tmp_path / "rmsnorm-seed1.json"
    checkpoint = write_checkpoint(tmp_path / "averaged.pt", torch.diag(torch.tensor([1.0, 4.0])))
    record = write_record(tmp_path / "record")
    entries = keep_files(path, HYPOTHESES, record, checkpoint)
    return path, entries


def row(folder, entries):
    """The row of the run in the table of runs."""
    sums = {f"kept.{kind}.sha256": entry["sha256"] for kind, entry in entries.items()}
    return {"norm": "rmsnorm", "seed": 1, "folder": folder, **sums}


def test_the_files_stand_beside_the_result_and_are_read_again(kept):
    path, entries = kept
    names = [entries[kind]["file"] for kind in (TRANSLATIONS, STATISTICS)]
    assert names == ["rmsnorm-seed1.hyp.txt.gz", "rmsnorm-seed1.statistics.json.gz"]
    assert read_kept(row(path.parent, entries), TRANSLATIONS) == TEXT
    statistics = read_statistics(path.parent / names[1])
    (spectrum,) = statistics["spectra"]
    assert spectrum == {"side": "shared", "shape": [2, 2], "values": [4.0, 1.0]}
    assert statistics["record"]["updates"] == [1, 11, 21]


def test_equal_runs_keep_equal_bytes(kept, tmp_path):
    path, entries = kept
    before = {p.name: p.read_bytes() for p in path.parent.glob("*.gz")}
    again = keep_files(path, HYPOTHESES, tmp_path / "record", tmp_path / "averaged.pt")
    assert again == entries
    assert {p.name: p.read_bytes() for p in path.parent.glob("*.gz")} == before
    assert all(content[4:8] == bytes(4) for content in before.values())  # no time in gzip's header


def test_nothing_is_kept_of_what_a_run_does_not_have(tmp_path):
    path = tmp_path / "rmsnorm-seed1.json"
    entries = keep_files(path, None, None, write_checkpoint(tmp_path / "averaged.pt"))
    assert read_kept(row(tmp_path, entries), TRANSLATIONS) is None
    statistics = read_statistics(tmp_path / entries[STATISTICS]["file"])
    assert (statistics["record"], statistics["spectra"]) == (None, [])
    assert read_kept({"norm": "older"}, STATISTICS) is None


def test_a_short_record_says_the_same_with_three_digits():
    lines = [
        {"every": 10, "norms": "norms: pre", "sites": SITES},
        {"update": 1, "sites": {"encoder.a": {"g_mu": 0.123456}}, "layers": {}},
        {"update": 11, "sites": {"encoder.a": {"g_psi2": 1.0}}, "layers": {"l": {"rms": 2.0}}},
    ]
    short = {
        "every": 10,
        "norms": "norms: pre",
        "channels": SITES,
        "updates": [1, 11],
        "sites": {"encoder.a": {"g_mu": [0.123, None], "g_psi2": [None, 1.0]}},
        "layers": {"l": {"rms": [None, 2.0]}},
    }
    assert compact(lines) == short
    full = compact(lines, digits=None)
    assert full["sites"]["encoder.a"]["g_mu"] == [0.123456, None]


def test_what_no_figure_draws_and_what_is_not_finite_is_left_out(kept):
    path, entries = kept
    record = read_statistics(path.parent / entries[STATISTICS]["file"])["record"]
    assert set(record["sites"]["encoder.a"]) == {"g_mu", "gamma_over_psi"}
    assert record["layers"] == {"encoder.layers.0": {"hidden_rms": [1.0, 11.0, None]}}


def test_an_archive_holds_the_same(kept, tmp_path):
    path, entries = kept
    published = tmp_path / "published"
    published.mkdir()
    archive_kept(path.parent, published, [("rmsnorm", 1)])
    assert sorted(one.name for one in published.iterdir()) == [
        "statistics.zip",
        "translations.zip",
    ]
    assert read_kept(row(published, entries), TRANSLATIONS) == TEXT
    name = entries[STATISTICS]["file"]
    assert read_statistics(published / name) == read_statistics(path.parent / name)
    first = (published / "statistics.zip").read_bytes()
    archive_kept(published, published, [("rmsnorm", 1)])  # from the archive itself
    assert (published / "statistics.zip").read_bytes() == first


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"hyp\.txt\.gz is missing, and a result names it"),
        (lambda path: path.write_bytes(path.read_bytes()[:20]), "cannot read .*hyp"),
        (lambda path: path.write_text("text"), "cannot read .*hyp.* gzip"),
        (
            lambda path: path.write_bytes(gzip.compress(b"another\n")),
            "another checksum than the result of rmsnorm seed 1 names",
        ),
    ],
)
def test_a_file_of_another_run_is_refused(kept, damage, message):
    path, entries = kept
    damage(path.parent / entries[TRANSLATIONS]["file"])
    with pytest.raises(CommandError, match=message):
        read_kept(row(path.parent, entries), TRANSLATIONS)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ('{"format": 0}', "has format 0; this version")]
)
def test_statistics_of_another_version_are_refused(tmp_path, text, message):
    path = tmp_path / f"a{ENDINGS[STATISTICS]}"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(CommandError, match=message):
        read_statistics(path)


@pytest.fixture
def older(tmp_path):
    """A work folder with a run and its result, which was scored before anything was kept."""
    run, data = tmp_path / "work/runs/toy/rmsnorm-seed1", tmp_path / "work/data/toy"
    (run / "checkpoints").mkdir(parents=True)
    write_checkpoint(run / "averaged.pt", torch.eye(2))
    write_record(run / "checkpoints" / "norm_record.jsonl.gz")
    lines = [
        line
        for i, (hypothesis, reference) in enumerate(zip(HYPOTHESES, REFERENCES))
        for line in (f"T-{i}\t{reference}", f"D-{i}\t-0.5\t{hypothesis}")
    ]
    score = "BLEU4 = 50.00, 50.0/50.0/50.0/50.0 (BP=1.000, ratio=1.000, syslen=11, reflen=11)"
    end = f"Generate test with beam=5: {score}"
    (run / "generate.log").write_text("\n".join([*lines, end, ""]))
    (data / "raw").mkdir(parents=True)
    (data / "raw" / "test.de").write_text("".join(f"{line}\n" for line in REFERENCES))
    settings = {"lowercase": True, "subword": "sentencepiece"}
    manifest = {"checksum": "c0ffee", "target": "de", "settings": settings}
    (data / "manifest.json").write_text(json.dumps(manifest))
    result = {
        "schema": 2,
        "experiment": "toy",
        "norm": "rmsnorm",
        "seed": 1,
        "split": "test",
        "data": {"checksum": "c0ffee"},
        "bleu": {"sacrebleu": score_sacrebleu(HYPOTHESES, REFERENCES, lowercase=True)},
    }
    path = tmp_path / "results" / "rmsnorm-seed1.json"
    path.parent.mkdir()
    path.write_text(json.dumps(result))
    return path


def test_an_older_result_is_completed_from_its_run(older, capsys):
    words = [str(older.parent), "--work", str(older.parents[1] / "work")]
    assert keep.main(words) == 0
    result = json.loads(older.read_text())
    assert read_kept(row(older.parent, result["kept"]), TRANSLATIONS) == TEXT
    assert read_statistics(older.parent / result["kept"][STATISTICS]["file"])["record"]
    assert keep.main(words) == 0
    assert capsys.readouterr().out == "rmsnorm, seed 1: kept\nrmsnorm, seed 1: kept before\n"


def test_a_run_that_was_made_again_is_not_kept(older, capsys):
    log = older.parents[1] / "work/runs/toy/rmsnorm-seed1/generate.log"
    log.write_text(log.read_text().replace("D-0\t-0.5\tein", "D-0\t-0.5\tkein"))
    assert keep.main([str(older.parent), "--work", str(older.parents[1] / "work")]) == 1
    assert "rmsnorm, seed 1: not kept: " in capsys.readouterr().out
    assert "kept" not in json.loads(older.read_text())


def test_a_run_that_is_gone_is_named(older, tmp_path, capsys):
    assert keep.main([str(older.parent), "--work", str(tmp_path / "none")]) == 1
    assert "not kept: no corpus in " in capsys.readouterr().out


@pytest.mark.parametrize(("score", "status"), [(50.0, 0), (100.0, 1)])
def test_a_classifier_is_known_by_its_accuracy(score, status, tmp_path, capsys):
    run, data = tmp_path / "work/runs/tiny/rmsnorm-seed1", tmp_path / "work/data/tiny"
    (run / "checkpoints").mkdir(parents=True)
    write_checkpoint(run / "checkpoints/checkpoint_best.pt", torch.eye(2))
    (data / "tok").mkdir(parents=True)
    (data / "tok/test.label").write_text("1\n0\n")
    (data / "manifest.json").write_text(json.dumps({"checksum": "c0ffee"}))
    end = "Predict test: accuracy = 50.00, 1 of 2"
    (run / "predict.log").write_text(f"P-0\t1\t0\t-0.5\nP-1\t0\t0\t-0.25\n{end}\n")
    result = {"schema": 3, "experiment": "tiny", "norm": "rmsnorm", "seed": 1, "split": "test"}
    result |= {"metric": "accuracy", "scores": {"accuracy": {"score": score}}}
    path = tmp_path / "results/rmsnorm-seed1.json"
    path.parent.mkdir()
    path.write_text(json.dumps(result | {"data": {"checksum": "c0ffee"}}))
    assert keep.main([str(path.parent), "--work", str(tmp_path / "work")]) == status
    assert ("kept" in json.loads(path.read_text())) == (status == 0)
    refused = "gives 50.0 of accuracy (%), and the result has 100.0" in capsys.readouterr().out
    assert refused == bool(status)
