"""Singular values of embeddings: known ones, equal and unequal sides, and what is refused."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
import torch

from norm_lab.report.spectrum import main
from norm_lab.results.spectrum import read_spectra
from norm_plugin.io.command_line import CommandError

VALUES = [8.0, 4.0, 2.0, 1.0]
RUNS = {"a.pt": "rmsnorm", "b.pt": "dyt"}


def embedding(values, rows=9, seed=0):
    """A (words, channels) matrix with these singular values."""
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(rows, len(values), generator=generator, dtype=torch.float64)
    left, _, right = torch.linalg.svd(random, full_matrices=False)
    return (left * torch.tensor(values, dtype=torch.float64)) @ right


@pytest.fixture
def save(tmp_path):
    def checkpoint(name="run.pt", norm="rmsnorm", **weights):
        model = {f"{side}.embed_tokens.weight": weight for side, weight in weights.items()}
        settings = argparse.Namespace(_name="norm_transformer", norm_type=norm)
        path = tmp_path / name
        torch.save({"cfg": {"model": settings}, "args": None, "model": model}, path)
        return path

    return checkpoint


def test_the_singular_values_are_those_of_the_matrix(save):
    shared = embedding(VALUES)
    (spectrum,) = read_spectra(save(encoder=shared, decoder=shared.clone()))
    assert (spectrum.norm, spectrum.side, spectrum.shape) == ("rmsnorm", "shared", (9, 4))
    np.testing.assert_allclose(spectrum.values, VALUES, rtol=1e-12)
    np.testing.assert_allclose(spectrum.normalized, [1, 0.5, 0.25, 0.125], rtol=1e-12)
    assert spectrum.stable_rank == pytest.approx((64 + 16 + 4 + 1) / 64)


def test_each_side_has_its_own_where_they_differ(save):
    path = save(encoder=embedding(VALUES), decoder=embedding([3.0, 3.0, 3.0, 3.0], rows=7))
    encoder, decoder = read_spectra(path)
    assert (encoder.side, decoder.side, decoder.shape) == ("encoder", "decoder", (7, 4))
    assert decoder.stable_rank == pytest.approx(4)


def test_the_command_prints_a_table(save, capsys):
    paths = [save(name, norm, encoder=embedding(VALUES)) for name, norm in RUNS.items()]
    assert main([*map(str, paths)]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["norm", "side", "words", "channels"]
    assert [line.split()[0] for line in lines] == ["rmsnorm", "dyt"]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "has no entry that ends in embed_tokens.weight"),
        ({"encoder": torch.full((3, 2), torch.nan)}, "run.pt has NaN or infinite values"),
    ],
)
def test_what_has_no_spectrum_is_refused(weights, message, save):
    with pytest.raises(CommandError, match=message):
        read_spectra(save(**weights))
