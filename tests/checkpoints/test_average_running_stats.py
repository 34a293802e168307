"""``--running-stats average`` and ``last``, and which checkpoints have one mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_run import run_state

from norm_plugin.checkpoints.average import average_checkpoints, main, running_statistics
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import NORM_TYPES, build_norm, norm_spec

WITH_STATISTICS = [name for name in NORM_TYPES if norm_spec(name).batch_statistics]


def randomized(state, seed: int):
    """``state`` with other values in every tensor: integers of 0 to 99, floats around 0."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in state["model"].values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        else:
            tensor.copy_(torch.randint(0, 100, tensor.shape, generator=generator))
    return state


def saved(folder: Path, data: Path, *flags: str) -> list[Path]:
    """Three checkpoints of one model with random values, the second the newest."""
    paths, state = [], run_state(data, *flags)
    for number, updates in enumerate((10, 30, 20)):
        state["optimizer_history"][-1]["num_updates"] = updates
        paths.append(folder / f"{number}.pt")
        torch.save(randomized(state, number), paths[-1])
    return paths


def test_what_is_no_running_statistic() -> None:
    elsewhere = {
        f"batch.{key}": value for key, value in torch.nn.BatchNorm1d(4).state_dict().items()
    }
    alone = {"head.psi2": torch.ones(4), "head.weight": torch.ones(4), "nu": torch.ones(4)}
    # A part of a norm's buffers makes no norm.
    part = {"x.running_mean": torch.ones(4), "x.running_var": torch.ones(4)}
    assert running_statistics({**elsewhere, **alone, **part}) == set()
    assert running_statistics({**part, "x.num_updates": torch.tensor(1)}) == set(part)


@pytest.mark.parametrize("name", WITH_STATISTICS)
def test_last_takes_the_statistics_of_the_newest_and_means_of_the_rest(
    tmp_path, data, name
) -> None:
    warms_up = norm_spec(name).has_option("warmup_updates")
    warmup = ("--norm-warmup-updates=4",) if warms_up else ()
    paths = saved(tmp_path, data, f"--norm-type={name}", *warmup)
    states = [load_checkpoint(path)["model"] for path in paths]
    result = average_checkpoints(paths, "last")
    model = result["model"]
    buffers = build_norm(name, 8).named_buffers()
    floating = {key for key, value in buffers if value.is_floating_point()}
    statistics = {key for key in model if key.rpartition(".")[2] in floating}
    assert statistics and result["running_stats"] == "last"
    assert list(model) == list(states[0])
    for key, value in model.items():
        mean = torch.stack([state[key].double() for state in states]).mean(0).float()
        newest = key in statistics or not value.is_floating_point()
        assert torch.equal(value, states[1][key] if newest else mean), key


def test_average_is_the_default_and_means_statistics_too(tmp_path, data) -> None:
    paths = saved(tmp_path, data, "--norm-type=batchnorm")
    output = tmp_path / "average.pt"
    assert main(["--inputs", *map(str, paths), "--output", str(output)]) == 0
    result = load_checkpoint(output)
    assert result["running_stats"] == "average"
    key = "encoder.layers.0.self_attn_layer_norm.running_var"
    assert key in running_statistics(result["model"])
    values = [load_checkpoint(path)["model"][key].double() for path in paths]
    assert torch.equal(result["model"][key], torch.stack(values).mean(0).float())


PRE = ("--norm-type=layernorm", "--norm-placement=pre")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--norm-type=groupnorm", "--norm-placement=pre", "--norm-groups=2"),
            "norm of encoder-self, .*: a.pt layernorm, b.pt groupnorm",
        ),
        ((*PRE, "--norm-eps=0.5"), "eps of layernorm of .*: a.pt 1e-05, b.pt 0.5"),
        (("--norm-placement=scaled-pre",), "placement of encoder, decoder: a.pt pre, b.pt scaled-"),
    ],
)
def test_another_norm_with_the_same_parameters_is_refused(tmp_path, data, flags, said) -> None:
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for number, (path, given) in enumerate(zip(paths, (PRE, flags))):
        torch.save(run_state(data, *given, updates=number), path)
    a, b = (load_checkpoint(path)["model"] for path in paths)
    assert set(a) == set(b)  # nothing else tells them apart
    with pytest.raises(CommandError, match=f"cannot average .*b.pt with a.pt: {said}.*one run"):
        average_checkpoints(paths)


def test_another_seed_and_other_kernels_are_the_same_model(tmp_path, data) -> None:
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for path, *flags in zip(paths, ("--norm-kernels=off", "--norm-kernels=auto")):
        schedule = f"--norm-warmup-updates={3 + len(flags[0])}"
        torch.save(run_state(data, "--norm-type=powernorm", schedule, *flags), path)
    assert average_checkpoints(paths)["averaged_from"] == ["a.pt", "b.pt"]
