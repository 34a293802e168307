"""The artifacts of a result: written, read, and refused if they belong to another run."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import pytest
import torch

from norm_lab.results.artifacts import (
    ENDINGS,
    STATISTICS,
    TRANSLATIONS,
    read_artifact,
    read_statistics,
    to_columns,
    write_artifacts,
)
from norm_lab.results.publishing import archive_kept
from norm_lab.results.spectrum import spectra_of
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.recording import RecordFile

HYPOTHESES = ["ein hund läuft über die wiese .", "zwei hunde\u2028schlafen ."]
TEXT = "".join(f"{line}\n" for line in HYPOTHESES)
SITES = {"encoder.a": 4, "decoder.b": 4}


def shared_spectrum():
    """The spectra of a model with a shared embedding."""
    weight = torch.diag(torch.tensor([1.0, 4.0]))
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    settings = argparse.Namespace(_name="norm_transformer", norm_type="rmsnorm")
    state = {"cfg": {"model": settings}, "args": None, "model": dict.fromkeys(names, weight)}
    return spectra_of(state, Path("averaged.pt"))


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
def stored(tmp_path):
    """The JSON file of a result, and the result with what was kept."""
    path = tmp_path / "rmsnorm-seed1.json"
    record = write_record(tmp_path / "record")
    entries = write_artifacts(path, HYPOTHESES, record, shared_spectrum())
    return path, entries


def row(folder, entries):
    """The row of the run in the table of runs."""
    sums = {f"kept.{kind}.sha256": entry["sha256"] for kind, entry in entries.items()}
    return {"norm": "rmsnorm", "seed": 1, "folder": folder, **sums}


def test_the_files_stand_beside_the_result_and_are_read_again(stored):
    path, entries = stored
    names = [entries[kind]["file"] for kind in (TRANSLATIONS, STATISTICS)]
    assert names == ["rmsnorm-seed1.hyp.txt.gz", "rmsnorm-seed1.statistics.json.gz"]
    assert read_artifact(row(path.parent, entries), TRANSLATIONS) == TEXT
    statistics = read_statistics(path.parent / names[1])
    (spectrum,) = statistics["spectra"]
    assert spectrum == {"side": "shared", "shape": [2, 2], "values": [4.0, 1.0]}
    assert statistics["record"]["updates"] == [1, 11, 21]


def test_equal_runs_keep_equal_bytes(stored, tmp_path):
    path, entries = stored
    before = {p.name: p.read_bytes() for p in path.parent.glob("*.gz")}
    again = write_artifacts(path, HYPOTHESES, tmp_path / "record", shared_spectrum())
    assert again == entries
    assert {p.name: p.read_bytes() for p in path.parent.glob("*.gz")} == before
    assert all(content[4:8] == bytes(4) for content in before.values())  # no time in gzip's header


def test_nothing_is_kept_of_what_a_run_does_not_have(tmp_path):
    path = tmp_path / "rmsnorm-seed1.json"
    entries = write_artifacts(path, None, None, [])
    assert read_artifact(row(tmp_path, entries), TRANSLATIONS) is None
    statistics = read_statistics(tmp_path / entries[STATISTICS]["file"])
    assert (statistics["record"], statistics["spectra"]) == (None, [])
    assert read_artifact({"norm": "older"}, STATISTICS) is None


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
    assert to_columns(lines) == short
    full = to_columns(lines, digits=None)
    assert full["sites"]["encoder.a"]["g_mu"] == [0.123456, None]


def test_what_no_figure_draws_and_what_is_not_finite_is_left_out(stored):
    path, entries = stored
    record = read_statistics(path.parent / entries[STATISTICS]["file"])["record"]
    assert set(record["sites"]["encoder.a"]) == {"g_mu", "gamma_over_psi"}
    assert record["layers"] == {"encoder.layers.0": {"hidden_rms": [1.0, 11.0, None]}}


def test_an_archive_holds_the_same(stored, tmp_path):
    path, entries = stored
    published = tmp_path / "published"
    published.mkdir()
    archive_kept([row(path.parent, entries)], published)
    assert sorted(path.name for path in published.iterdir()) == [
        "statistics.zip",
        "translations.zip",
    ]
    assert read_artifact(row(published, entries), TRANSLATIONS) == TEXT
    name = entries[STATISTICS]["file"]
    assert read_statistics(published / name) == read_statistics(path.parent / name)
    first = (published / "statistics.zip").read_bytes()
    archive_kept([row(published, entries)], published)  # from the archive itself
    assert (published / "statistics.zip").read_bytes() == first


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"hyp\.txt\.gz is missing, but a result names it"),
        (lambda path: path.write_bytes(path.read_bytes()[:20]), "cannot read .*hyp"),
        (lambda path: path.write_text("text"), "cannot read .*hyp.* gzip"),
        (
            lambda path: path.write_bytes(gzip.compress(b"another\n")),
            "another checksum than the result of rmsnorm seed 1 names",
        ),
    ],
)
def test_a_file_of_another_run_is_refused(stored, damage, message):
    path, entries = stored
    damage(path.parent / entries[TRANSLATIONS]["file"])
    with pytest.raises(CommandError, match=message):
        read_artifact(row(path.parent, entries), TRANSLATIONS)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ('{"format": 0}', "has format 0; this version")]
)
def test_statistics_of_another_version_are_refused(tmp_path, text, message):
    path = tmp_path / f"a{ENDINGS[STATISTICS]}"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(CommandError, match=message):
        read_statistics(path)


def test_an_archive_that_cannot_be_read_is_one_line(stored, tmp_path):
    path, entries = stored
    published = tmp_path / "published"
    published.mkdir()
    archive_kept([row(path.parent, entries)], published)
    archive = published / "translations.zip"
    content = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] = 1  # encrypted
    for damaged in (bytes(content), b"PK", b"PK\x05\x06" + bytes(18)):
        archive.write_bytes(damaged)
        with pytest.raises(CommandError, match=r"translations\.zip|hyp\.txt\.gz is missing"):
            read_artifact(row(published, entries), TRANSLATIONS)
