"""examples/mnist.py on made-up images."""

from __future__ import annotations

import gzip
import math

import pytest
import torch

import mnist


def write_idx(path, values):
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    head = (0x800 + values.dim()).to_bytes(4, "big")
    path.write_bytes(gzip.compress(head + sizes + values.to(torch.uint8).numpy().tobytes()))


def write_digits(folder, part, count):
    """Digit d is a white row at 2 d, in noise."""
    generator = torch.Generator().manual_seed(count)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randint(60, (count, 28, 28), generator=generator)
    images[torch.arange(count), 2 * labels + 4] = 255
    write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
    write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)


@pytest.fixture
def digits(tmp_path):
    write_digits(tmp_path, "t10k", 200)
    return tmp_path


def test_it_learns(digits, capsys):
    argv = ["--data", str(digits), "--epochs", "3", "--norm-type", "adanorm"]
    scores = mnist.main(argv)
    assert scores["test accuracy"] > 80  # chance is 10
    printed = capsys.readouterr().out
    assert "has only the test images" in printed
    assert f"adanorm, seed 1: test accuracy {scores['test accuracy']:.2f}" in printed
    assert mnist.main(argv) == scores


def layers(model):
    kinds = torch.nn.Conv2d | torch.nn.Linear
    return [tuple(each.weight.shape[:2]) for each in model.modules() if isinstance(each, kinds)]


def test_the_norm_is_before_the_activation_of_the_hidden_layer():
    model = mnist.HiddenNorm(lambda dim: mnist.build_norm("layernorm-simple", dim))
    assert layers(model) == [(20, 1), (50, 20), (500, 800), (10, 500)]
    images = torch.rand(2, 1, 28, 28)
    hidden = model.hidden(model.features(images))
    mean, variance = hidden.mean(1, keepdim=True), hidden.var(1, unbiased=False, keepdim=True)
    normalized = (hidden - mean) / (variance + 1e-5).sqrt()
    torch.testing.assert_close(model(images), model.output(normalized.clamp(min=0)))


def test_the_norm_may_be_that_of_the_scores():
    model = mnist.ScoreNorm(lambda dim: mnist.build_norm("layernorm-simple", dim))
    assert layers(model) == [(20, 1), (50, 20), (10, 800)]
    scores = model(torch.rand(2, 1, 28, 28))
    torch.testing.assert_close(scores.mean(1), torch.zeros(2), atol=1e-6, rtol=0)  # float32's sums
    # eps, 1e-5, lies inside the root, beside a variance of about 0.01 at the start
    torch.testing.assert_close(scores.var(1, unbiased=False), torch.ones(2), atol=1e-2, rtol=0)


@pytest.mark.parametrize("place", mnist.NETWORKS)
def test_the_place_of_the_norm_chooses_the_network(place, digits, monkeypatch):
    built = []
    monkeypatch.setattr(mnist, "check_finite", lambda *args: built.append(args[-1]))
    mnist.main(["--data", str(digits), "--epochs", "1", "--norm-at", place])
    assert type(built[0]) is mnist.NETWORKS[place]


def test_the_epoch_with_the_best_validation_accuracy_counts(digits, monkeypatch):
    scores = iter([50, 1, 70, 2, 60, 3])  # of validation and test, epoch by epoch
    monkeypatch.setattr(mnist, "accuracy", lambda *args: next(scores))
    monkeypatch.setattr(mnist, "train_epoch", lambda *args: 0.0)
    best = mnist.main(["--data", str(digits), "--epochs", "3"])
    assert best == {"valid accuracy": 70, "test accuracy": 2}


def test_a_last_update_that_breaks_the_weights_has_no_score(digits, monkeypatch):
    def one_update_too_many(model, *args):
        model.output.bias.data[0] = math.inf
        return 1.0  # the loss is that before the update

    monkeypatch.setattr(mnist, "train_epoch", one_update_too_many)
    with pytest.raises(ValueError, match="after epoch 1 the model has weights that are NaN"):
        mnist.main(["--data", str(digits), "--epochs", "1"])


def test_the_norm_of_the_score_is_that_of_inference():
    model = mnist.HiddenNorm(lambda dim: mnist.build_norm("batchnorm", dim))
    images, labels = torch.rand(4, 1, 28, 28), torch.tensor([1, 2, 3, 4])
    before = {name: value.clone() for name, value in model.named_buffers()}
    alone = [mnist.accuracy(model.train(), *pair) for pair in zip(images.split(1), labels.split(1))]
    assert mnist.accuracy(model.train(), images, labels) == pytest.approx(sum(alone) / 4)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_the_whole_of_mnist_has_the_split_of_the_paper(tmp_path):
    write_digits(tmp_path, "train", 120)
    write_digits(tmp_path, "t10k", 20)
    parts = mnist.read_mnist(tmp_path, torch.Generator().manual_seed(1))
    assert [len(labels) for _, labels in parts] == [110, 10, 20]
    assert [share * 60_000 for share in mnist.FULL] == [55_000, 5_000]
