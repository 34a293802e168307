"""papers/image_statistics.py: the statistics of batch normalization in a network for images."""

from __future__ import annotations

import pytest
import torch
from examples.test_mnist import write_digits

from papers import image_statistics
from papers.example_runs import RESULTS
from papers.image_statistics import CHANNELS, NAME, MeasuredNorm, main, recorded_values


def test_a_record_has_the_distances_before_the_batch_and_the_parts_of_the_gradient():
    torch.manual_seed(1)
    measured, running = MeasuredNorm(), (torch.randn(CHANNELS), torch.rand(CHANNELS) + 0.5)
    measured.norm.running_mean.copy_(running[0])
    measured.norm.running_var.copy_(running[1])
    images = torch.randn(8, CHANNELS, 5, 5, requires_grad=True)
    measured(images).square().sum().backward()
    (record,) = measured.records

    x = images.detach().transpose(0, 1).flatten(1).double()  # (C, n)
    rms = x.square().mean().sqrt()
    mean, variance = x.mean(1), x.var(1, correction=0)
    expected = {
        "relative_mean": (mean - running[0]).square().mean().sqrt() / rms,
        "relative_variance": (variance - running[1]).square().mean().sqrt() / rms**2,
    }
    # dL/dy = 2 y with y = x_hat, since gain is 1 and offset 0: it has mean 0, and 2 sum(x_hat^2)
    g = 2 * (x - mean[:, None]) / variance.sqrt()[:, None]
    parts = {"g_mu": g.mean(1), "g_sigma2": (g * (x - mean[:, None])).mean(1) / variance.sqrt()}
    for name, part in parts.items():
        expected[name] = (part / variance.sqrt()).norm() / CHANNELS
    for name, value in expected.items():  # eps is 1e-5; means of 200 numbers in float32
        assert record[name] == pytest.approx(float(value), rel=1e-4, abs=1e-6), name


def test_every_25th_update_is_kept(tmp_path, monkeypatch):
    data, out = tmp_path / "data", tmp_path / RESULTS / NAME
    data.mkdir()
    write_digits(data, "t10k", 400)  # 280 of them train
    monkeypatch.setattr(image_statistics, "EVERY", 4)
    main(["--data", str(data), "--seeds", "1", "2", "--out", str(out)])
    values = recorded_values("relative_mean", tmp_path)
    assert sorted(set(values["update"])) == [1, 5, 9]  # of ceil(280 / 32) = 9
    assert values.groupby("seed").size().to_dict() == {1: 3, 2: 3}
    first = values[values["update"] == 1].set_index("seed")["number"]
    assert (first > 0).all() and first[1] != first[2]
