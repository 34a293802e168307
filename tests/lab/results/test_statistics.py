"""The statistics in a result: what of a record they have."""

from __future__ import annotations

import pytest
import torch

from norm_lab.results.statistics import spectra_of, statistics_of_run, to_columns
from norm_plugin.models.recording import RecordFile

SITES = {"encoder.a": 4, "decoder.b": 4}


@pytest.fixture
def record(tmp_path):
    """Three updates; the second one lacks a site, and a value is not finite."""
    path = tmp_path / "record"
    file = RecordFile(path, {"every": 10, "norms": "norms: pre", "sites": SITES})
    for update in (1, 11, 21):
        a = {"g_mu": 0.123456, "gamma_over_psi": [1.0, 2.0], "batch_mean": [1.0], "positions": 9.0}
        sites = {"encoder.a": a} if update == 11 else {"encoder.a": a, "decoder.b": {"g_mu": 4.0}}
        layers = {"encoder.layers.0": {"hidden_rms": float("inf") if update == 21 else update}}
        file.append({"update": update, "sites": sites, "layers": layers})
    return path


def test_the_singular_values_of_the_embeddings():
    """A rotated matrix has the singular values of its diagonal; equal embeddings have one entry."""
    turned, _ = torch.linalg.qr(torch.arange(9.0).reshape(3, 3).cos())
    encoder = turned[:, :2] @ torch.diag(torch.tensor([1.0, 4.0]))
    for decoder, sides in ((encoder.clone(), ["shared"]), (encoder.T, ["encoder", "decoder"])):
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        spectra = spectra_of({"model": dict(zip(names, (encoder, decoder)))})
        assert [each["side"] for each in spectra] == sides
        assert spectra[-1]["shape"] == tuple(decoder.shape)
        assert all(each["values"] == [4.0, 1.0] for each in spectra)


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


def test_what_no_figure_draws_and_what_is_not_finite_is_left_out(record):
    stored = statistics_of_run(record, {"model": {}})["record"]
    assert set(stored["sites"]["encoder.a"]) == {"g_mu", "gamma_over_psi"}
    assert stored["layers"] == {"encoder.layers.0": {"hidden_rms": [1.0, 11.0, None]}}
