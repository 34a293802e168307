#!/usr/bin/env python3
"""Record the batch statistics of a network for images, as in Figures 2 and 3 of PowerNorm.

    python -m papers.image_statistics --data DIR --seeds 1 2 3 4 5

The paper compares the first batch normalization of ResNet20 on CIFAR-10 with that of a Transformer.
Here the network is that of examples/mnist.py --norm-at scores with batch normalization after the
first convolution in place of its own norm, for one epoch of MNIST. Writes
papers/data/examples/image_statistics with one file per seed; studies/multi30k_cpu has the records
of the Transformer.

norm_plugin/models/recording/measures.py has the formulas. The distance of Figure 2 depends on the
scale of the norm's input and on its number of channels C. So there are two forms of it, the paper's
and one per channel, in units of the input's root mean square:

    distance_mean = ||mu_B - mu|| / C,                distance_variance likewise
    relative_mean = ||mu_B - mu|| / sqrt(C) / rms,    relative_variance likewise, / rms^2

Declared before the first runs, as logarithms to base 10 of the Transformer's value over this one:

    Figure 2: the relative distances of the last tenth of the updates are above 0. The paper says
              orders of magnitude, so an interval within 1 excludes the claim
    Figure 3: the largest g_mu and g_sigma2 of the last tenth, over the median, are above 0

The paper's form was added after these had been seen, with the same margin.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from norm_lab.paths import ROOT
from norm_lab.results.result import result_name
from norm_plugin.io.command_line import run_command
from norm_plugin.io.files import write_text
from norm_plugin.models.recording.measures import gradient_parts, moments, root_mean_square
from norm_plugin.norms.batch_norm import BatchNorm
from papers.example_runs import RESULTS, Run, begin_series, made_here, read_runs

sys.path.insert(0, str(ROOT / "examples"))
from mnist import LEARNING_RATE, ScoreNorm, read_mnist, train_epoch

NAME, NORM, CHANNELS = "image_statistics", "batchnorm", 20
EVERY = 25
"""Every 25th update is kept, as in studies/multi30k_cpu."""


class MeasuredNorm(nn.Module):
    """Batch normalization of images, (N, C, H, W), that keeps a record of each training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = BatchNorm(CHANNELS, layer_scale_groups=0)
        self.records: list[dict[str, float]] = []

    def forward(self, images: Tensor) -> Tensor:
        """Normalize each channel. The record gets the gradient's parts in the backward pass."""
        x = images.movedim(1, -1)
        u = x.detach().flatten(0, -2)
        batch, rms, root = moments(u), root_mean_square(u), math.sqrt(CHANNELS)
        mean = (batch.mean - self.norm.running_mean).norm()  # the statistics before this batch
        variance = (batch.variance - self.norm.running_var).norm()
        distances = {
            "distance_mean": mean / CHANNELS,
            "distance_variance": variance / CHANNELS,
            "relative_mean": mean / root / rms,
            "relative_variance": variance / root / rms**2,
        }
        self.records.append({name: float(value) for name, value in distances.items()})
        y: Tensor = self.norm(x)

        def keep_parts(dy: Tensor) -> None:
            parts = gradient_parts(self.norm.weight * dy.flatten(0, -2), u, batch, self.norm.eps)
            self.records[-1].update({name: float(parts[name]) for name in ("g_mu", "g_sigma2")})

        y.register_hook(keep_parts)
        return y.movedim(-1, 1)


def train(data: Path, seed: int) -> dict[str, list[float]]:
    """Train for one epoch; return the recorded values, each a list over the recorded updates."""
    torch.manual_seed(seed)
    (images, labels), *_ = read_mnist(data, torch.Generator().manual_seed(seed))
    model, norm = ScoreNorm(nn.Identity), MeasuredNorm()
    model.conv1.register_forward_hook(lambda module, inputs, output: norm(output))
    parameters = [*model.parameters(), *norm.parameters()]
    train_epoch(model, torch.optim.Adam(parameters, lr=LEARNING_RATE), images, labels)
    records = pd.DataFrame(norm.records[::EVERY]).map(lambda value: float(f"{value:.3g}"))
    return {"update": [1 + EVERY * i for i in range(len(records))], **records.to_dict("list")}


def recorded_values(name: str, root: Path) -> pd.DataFrame:
    """Return one recorded value of all seeds: seed, update, number."""
    runs = read_runs(root / RESULTS / NAME)
    return pd.concat(
        pd.DataFrame({"update": run["records"]["update"], "number": run["records"][name]}).assign(
            seed=run["seed"]
        )
        for run in runs
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5], metavar="N")
    parser.add_argument("--out", type=Path, default=ROOT / RESULTS / NAME, metavar="DIR")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    command = "python -m papers.image_statistics --data DIR --seeds SEED"
    shared = begin_series(args.out, command, args.data)
    for seed in args.seeds:
        start = time.process_time()
        made: Run = {"norm": NORM, "seed": seed, "records": train(args.data, seed), **shared}
        made |= {"cpu_seconds": round(time.process_time() - start, 1), **made_here()}
        write_text(args.out / result_name(NORM, seed), json.dumps(made) + "\n")
    return 0


if __name__ == "__main__":
    run_command(main)
