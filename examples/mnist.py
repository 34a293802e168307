#!/usr/bin/env python3
"""Classify MNIST with the network of the AdaNorm paper (Xu et al. 2019, section 4.1), any norm.

    python examples/mnist.py --data DIR --norm-type adanorm --seed 1

DIR holds the four files of MNIST (train-images-idx3-ubyte.gz and so on): 55,000 images train, 5,000
validate, 10,000 test. If it holds the 10,000 test images only, they are split into 7,000, 1,000 and
2,000, and the accuracy cannot be compared with that of the paper.

From the paper (section 2.2 and appendix A.3): two convolutions of 20 and 50 channels, the norm
before the activation of the linear layer, the batch, the optimizer, 20 epochs, C = 2, and the
choice of the epoch with the best validation accuracy, whose test accuracy is reported. Not in the
paper: the linear layer of 500 with an activation between the convolutions and the ten scores, as in
PyTorch's own example, which has the same channels; the 5 x 5 kernels; ReLU; max pooling after the
convolutions.

--norm-at scores has no such layer: its one linear layer computes the ten scores, and the norm
normalizes these. Counted by the letter, these are the paper's three layers.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from divergence import check_finite
from norm_plugin.io.command_line import at_least
from norm_plugin.norms import add_norm_arguments, build_norm, norm_options

BATCH, LEARNING_RATE = 32, 0.001
FEATURES, HIDDEN, DIGITS = 50 * 4 * 4, 500, 10  # channels of the linear layers
FULL, TEST_ONLY = (11 / 12, 1 / 12), (0.7, 0.1, 0.2)  # shares of the parts of a split
IMAGES, LABELS = 0x803, 0x801  # magic numbers of the IDX format: bytes, in 3 and in 1 dimension


class Convolutions(nn.Module):
    """Two convolutions, each with ReLU and max pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 20, 5), nn.Conv2d(20, 50, 5)

    def features(self, images: Tensor) -> Tensor:
        """Return the features, (N, 800), of images, (N, 1, 28, 28)."""
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)  # (N, 20, 12, 12)
        return F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)  # from (N, 50, 4, 4)


class HiddenNorm(Convolutions):
    """A hidden linear layer of 500 with the norm before its activation, and the linear scores."""

    def __init__(self, new_norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.hidden, self.norm = nn.Linear(FEATURES, HIDDEN), new_norm(HIDDEN)
        self.output = nn.Linear(HIDDEN, DIGITS)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the digits, (N, 10), for images, (N, 1, 28, 28)."""
        return self.output(F.relu(self.norm(self.hidden(self.features(images)))))


class ScoreNorm(Convolutions):
    """One linear layer, of the scores, with the norm before the softmax, part of the loss."""

    def __init__(self, new_norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.output, self.norm = nn.Linear(FEATURES, DIGITS), new_norm(DIGITS)

    def forward(self, images: Tensor) -> Tensor:
        """Return the normalized scores of the digits, (N, 10), for images, (N, 1, 28, 28)."""
        return self.norm(self.output(self.features(images)))


NETWORKS = {"hidden": HiddenNorm, "scores": ScoreNorm}
"""The networks by the place of the norm, ``--norm-at``."""


def read_idx(path: Path, magic: int) -> Tensor:
    """Return the bytes of a gzipped IDX file, (N,) or (N, 28, 28)."""
    content = gzip.decompress(path.read_bytes())
    if int.from_bytes(content[:4], "big") != magic:
        raise ValueError(f"{path} is not an IDX file of MNIST: it begins with {content[:4].hex()}")
    sizes = [int.from_bytes(content[4 * i : 4 * i + 4], "big") for i in range(1, 1 + magic % 256)]
    values = bytearray(content[4 + 4 * len(sizes) :])
    return torch.frombuffer(values, dtype=torch.uint8).view(sizes)


def read_mnist(folder: Path, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Return images (N, 1, 28, 28) and labels (N,) for training, validation and test."""

    def read(part: str) -> tuple[Tensor, Tensor]:
        images = read_idx(folder / f"{part}-images-idx3-ubyte.gz", IMAGES)
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", LABELS)
        if len(images) != len(labels):
            raise ValueError(f"{folder}: {part} has {len(images)} images, {len(labels)} labels")
        return images.unsqueeze(1) / 255, labels.long()

    def split(images: Tensor, labels: Tensor, shares: Sequence[float]) -> list[Any]:
        order = torch.randperm(len(labels), generator=generator)
        parts = order.split([round(share * len(labels)) for share in shares])
        return [(images[part], labels[part]) for part in parts]

    if (folder / "train-images-idx3-ubyte.gz").exists():
        return [*split(*read("train"), FULL), read("t10k")]
    print(f"{folder} has only the test images: they are split into train, valid and test")
    return split(*read("t10k"), TEST_ONLY)


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> float:
    """Make one pass over the training images in random order; return the mean loss."""
    model.train()
    losses = []
    for batch in torch.randperm(len(labels)).split(BATCH):
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images with the right digit, in percent."""
    model.eval()
    digits = torch.cat([model(part).argmax(dim=1) for part in images.split(1000)])
    return 100 * (digits == labels).float().mean().item()


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Run the command; return the scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=1, help="seed of split, weights and order")
    parser.add_argument(
        "--norm-at", choices=NETWORKS, default="hidden", help="place of the norm; default: hidden"
    )
    parser.add_argument("--epochs", type=at_least(1), default=20, help="default: %(default)s")
    add_norm_arguments(parser)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    new_norm = partial(build_norm, args.norm_type, **norm_options(args))
    train, valid, test = read_mnist(args.data, torch.Generator().manual_seed(args.seed))
    # this layout and the fused steps take about two thirds of the time, on a CPU too
    model = NETWORKS[args.norm_at](new_norm)
    convert_conv2d_weight_memory_format(model, torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    best = {"valid accuracy": -1.0}
    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(model, optimizer, *train)
        check_finite(f"epoch {epoch}", loss, model)
        scores = {
            "valid accuracy": accuracy(model, *valid),
            "test accuracy": accuracy(model, *test),
        }
        shown = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
        print(f"epoch {epoch}: loss {loss:.4f}, {shown}")
        best = max(best, scores, key=lambda epoch: epoch["valid accuracy"])
    print(f"{args.norm_type}, seed {args.seed}: test accuracy {best['test accuracy']:.2f}")
    return best


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
