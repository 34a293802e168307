"""``--running-stats reestimate``: running statistics that belong to the averaged weights."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.trainer import Trainer
from reference import transcription
from tiny_run import run_state, write_dictionaries, write_pairs

from norm_plugin.checkpoints import reestimate as module
from norm_plugin.checkpoints.average import main
from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.checkpoints.reestimate import reestimate, running_statistics, train_batches
from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import NORM_TYPES, BatchStatisticsNorm, build_norm, norm_spec

WITH_STATISTICS = [name for name in NORM_TYPES if norm_spec(name).batch_statistics]
PRE = ("--norm-placement=pre", "--encoder-layers=2")
FIRST = "encoder.layers.0.self_attn_layer_norm"
SECOND = "encoder.layers.0.final_layer_norm"
FINAL = "encoder.layer_norm"
BATCHES = 6


def flags_of(name: str) -> list[str]:
    """The norm at each encoder site, long past a short warm-up where it has one."""
    warmup = ["--norm-warmup-updates=4"] if norm_spec(name).has_option("warmup_updates") else []
    return [f"--norm-type={name}", *PRE, *warmup]


def checkpoint(folder: Path, data: Path, *flags: str, **kwargs):
    """The path and the content of a checkpoint whose statistics are of no use at all."""
    path = folder / "run.pt"
    torch.save(run_state(data, *flags, **kwargs), path)
    return path, with_garbage(load_checkpoint(path))


def is_batch_norm(module) -> bool:
    return isinstance(module, BatchStatisticsNorm)


def with_garbage(state, size: float = 1e3):
    generator = torch.Generator().manual_seed(int(size))
    for entry in sorted(running_statistics(state["model"])):
        tensor = state["model"][entry]
        tensor.copy_(size * (0.5 + torch.rand(tensor.shape, generator=generator)))
    for entry, tensor in state["model"].items():
        if entry.endswith("_filled"):
            tensor.fill_(2)
    return state


def watch(model, task, rows) -> None:
    """Append what each norm of ``rows`` is given, without the padding, (n, C), to its list."""
    real = []

    def see(encoder, inputs):
        real[:] = [~inputs[0].eq(task.source_dictionary.pad()).t()]

    model.encoder.register_forward_pre_hook(see)
    for name, of_norm in rows.items():
        model.get_submodule(name).register_forward_pre_hook(
            lambda norm, inputs, of_norm=of_norm: of_norm.append(inputs[0][real[0]])
        )


def batch_squares(path: Path, data: Path):
    """The inputs of the first norm, which no other norm precedes: for each batch (n, C)."""
    model, cfg, task = build_model(path, data)
    rows = {FIRST: []}
    watch(model.eval(), task, rows)
    with torch.no_grad():
        for sample in itertools.islice(train_batches(model, cfg, task), BATCHES):
            model(**sample["net_input"])
    return rows[FIRST]


def expected_statistics(name: str, rows):
    """Return the transcription's plain mean over batches of each batch's, or window's, value.

    The first batch normalizes as in a warm-up, by none of the statistics that are updated.
    """
    norm = build_norm(name, rows[0].size(1))
    warmup = {"warmup_updates": 1} if norm_spec(name).has_option("warmup_updates") else {}
    reference = transcription(name, norm, **warmup)
    seen = []
    for x in rows:
        reference.forward(x.double().numpy(), np.ones(len(x), dtype=bool))
        seen.append(reference.own)
    reference.backward(np.zeros(rows[-1].shape))  # its state is complete
    means = {key: np.mean([values[key] for values in seen], axis=0) for key in seen[0]}
    return {key: means.get(key, reference.state.get(key)) for key in norm.forward_updated_buffers}


@pytest.mark.parametrize("name", WITH_STATISTICS)
def test_the_plain_mean_over_batches(tmp_path, data, name) -> None:
    path, state = checkpoint(tmp_path, data, *flags_of(name), "--dropout=0")
    reestimate(state, path, BATCHES)
    rows = batch_squares(path, data)
    assert len({len(x) for x in rows}) > 1  # ragged: a mean over tokens would be another
    weights = state["model"]
    for buffer, value in expected_statistics(name, rows).items():
        expected = torch.as_tensor(value).to(weights[f"{FIRST}.{buffer}"].dtype)
        # float32 means over up to 100 tokens, in another order: at worst 100 roundings of 6e-8 of
        # inputs of size 1, which a mean near 0 keeps; a mean over tokens is percents away
        torch.testing.assert_close(weights[f"{FIRST}.{buffer}"], expected, rtol=1e-5, atol=1e-5)


CASES = {name: flags_of(name) for name in WITH_STATISTICS}
CASES["powernorm released"] = [*flags_of("powernorm"), "--norm-variant=released"]
CASES["powernorm released in its warm-up"] = [
    *(*flags_of("powernorm"), "--norm-variant=released", "--norm-warmup-updates=4000")
]
CASES["repbn in its blend"] = [*flags_of("repbn"), "--norm-blend-updates=180"]
CASES["checkpointed activations"] = [*flags_of("powernorm"), "--checkpoint-activations"]


@pytest.mark.parametrize("flags", CASES.values(), ids=CASES)
def test_nothing_of_the_statistics_before_is_left(tmp_path, data, flags) -> None:
    path, state = checkpoint(tmp_path, data, *flags)
    other = with_garbage(load_checkpoint(path), size=3e7)
    before = {key: value.clone() for key, value in state["model"].items()}
    for each in (state, other):
        reestimate(each, path, BATCHES)
    moved = set()
    for key, value in state["model"].items():
        if torch.equal(value, before[key]):
            continue
        moved.add(key)
        # Bit-equal with dropout on: the seed is fixed, and the first weight is 1.
        assert torch.equal(value, other["model"][key]), key
    model, _, _ = build_model(path, data)
    norms = {path: norm for path, norm in model.named_modules() if is_batch_norm(norm)}
    of_forwards = {
        f"{path}.{key}" for path, norm in norms.items() for key in norm.forward_updated_buffers
    }
    assert moved == of_forwards


def save_run(folder: Path, data: Path, *flags: str) -> list[str]:
    """Two checkpoints of a run and what averages them, without --output, on a command line."""
    paths = [folder / "1.pt", folder / "2.pt"]
    for seed, path in enumerate(paths):
        torch.save(with_garbage(run_state(data, *flags, updates=80 + seed, seed=seed)), path)
    return ["--inputs", *map(str, paths), "--running-stats", "reestimate"]


def test_the_command_says_and_records_what_it_did(tmp_path, data, capsys) -> None:
    command = save_run(tmp_path, data, *flags_of("powernorm"))
    for name in ("one.pt", "two.pt"):
        assert main([*command, "--batches", "7", "--output", str(tmp_path / name)]) == 0
    line = f"running statistics re-estimated from 7 batches of {data}; nu of the backward pass"
    assert line in capsys.readouterr().out
    first, second = (load_checkpoint(tmp_path / name) for name in ("one.pt", "two.pt"))
    assert first["averaged_from"] == ["1.pt", "2.pt"]
    assert (first["running_stats"], first["running_stats_batches"]) == ("reestimate", 7)
    oldest, newest = (load_checkpoint(tmp_path / name)["model"] for name in ("1.pt", "2.pt"))
    for key, value in first["model"].items():
        assert torch.equal(value, second["model"][key]), key  # seven batches are over an epoch
        if key.endswith("num_updates"):
            assert value.item() == newest[key].item() == 81
        elif key.endswith("psi2"):
            assert 0 < value.max() < 10
        else:
            assert torch.equal(value, ((oldest[key].double() + newest[key].double()) / 2).float())
    build_model(tmp_path / "one.pt")  # fairseq loads it


def test_without_batch_statistics_there_is_nothing_to_do(tmp_path, data, capsys) -> None:
    command = save_run(tmp_path, data, "--norm-type=rmsnorm")
    assert main([*command, "--data", "nowhere", "--output", str(tmp_path / "average.pt")]) == 0
    assert "this model has no running statistics" in capsys.readouterr().out
    assert "running_stats_batches" not in load_checkpoint(tmp_path / "average.pt")


def test_data_that_moved(tmp_path, data, capsys) -> None:
    gone = tmp_path / "gone"
    gone.symlink_to(data)
    command = save_run(tmp_path, gone, *flags_of("batchnorm"))
    gone.unlink()
    output = tmp_path / "average.pt"
    with pytest.raises(CommandError, match=f"{gone}, does not exist; .*--data"):
        main([*command, "--output", str(output)])
    assert not output.exists()
    assert main([*command, "--data", str(data), "--output", str(output)]) == 0
    assert f"from 100 batches of {data}\n" in capsys.readouterr().out


def test_data_that_does_not_fit(tmp_path, data) -> None:
    path, state = checkpoint(tmp_path, data, *flags_of("batchnorm"))
    cannot = "cannot make training batches of the data in"
    alone = write_dictionaries(tmp_path / "alone")
    with pytest.raises(CommandError, match=f"{cannot} {alone}: Dataset not found: train"):
        reestimate(state, path, 1, alone)
    for name, damage, message in (
        ("cut", lambda path: path.write_bytes(b"abc"), "cannot read the batches of the data in"),
        ("half", lambda path: path.with_suffix(".idx").unlink(), "has no target side"),
    ):
        damaged = write_pairs(write_dictionaries(tmp_path / name), 20)
        damage(damaged / "train.en-de.de.bin")
        with pytest.raises(CommandError, match=message):
            reestimate(state, path, 1, damaged)
    few = write_pairs(write_dictionaries(tmp_path / "few"), 5)  # batches are of eight
    with pytest.raises(CommandError, match=f"the training data in {few} is less than one"):
        reestimate(state, path, 1, few)


@pytest.mark.parametrize("sizes", [["--max-tokens=64"], ["--max-tokens=500", "--batch-size=8"]])
def test_the_batches_are_those_of_the_runs_trainer(tmp_path, data, sizes) -> None:
    path, _ = checkpoint(tmp_path, data, *flags_of("batchnorm"), "--seed=11", *sizes)
    model, cfg, task = build_model(path)
    ours = list(itertools.islice(train_batches(model, cfg, task), 12))
    criterion = task.build_criterion(cfg.criterion)
    epochs = Trainer(cfg, task, model, criterion).get_train_iterator(epoch=1)
    theirs = list(epochs.next_epoch_itr())
    assert len(theirs) < len(ours)
    for batch, expected in zip(ours, [*theirs, *epochs.next_epoch_itr()]):
        assert torch.equal(batch["id"], expected["id"])


def test_dropout_is_on_as_in_training(tmp_path, data) -> None:
    means = []
    for dropout in ("0.5", "0"):
        path, state = checkpoint(
            tmp_path,
            data,
            *flags_of("powernorm-v"),
            f"--dropout={dropout}",
            "--norm-layer-scale-groups=0",
        )
        reestimate(state, path, BATCHES)
        means.append(state["model"][f"{FIRST}.psi2"].mean().item())
    # The embeddings that this norm sees: dropout of a half doubles their mean square.
    # Of some 4,000 such squares, of which half are 0, the standard error is 3 to 4 %.
    assert 1.6 < means[0] / means[1] < 2.4


def test_a_layer_that_is_dropped_counts_its_own_forwards(tmp_path, data, monkeypatch) -> None:
    flags = (*flags_of("batchnorm"), "--norm-layer-scale-groups=0", "--encoder-layerdrop=0.5")
    path, state = checkpoint(tmp_path, data, *flags)
    rows = {FIRST: [], SECOND: [], FINAL: []}

    def watched(*arguments, **keywords):
        built = build_model(*arguments, **keywords)
        model, _, task = built
        watch(model, task, rows)
        return built

    monkeypatch.setattr(module, "build_model", watched)
    reestimate(state, path, 12)
    assert len(rows[FINAL]) == 12
    assert 0 < len(rows[FIRST]) == len(rows[SECOND]) < 12
    for name, of_norm in rows.items():
        variance = torch.stack([x.var(0, unbiased=False) for x in of_norm]).mean(0)
        # rounding as in test_the_plain_mean_over_batches; a mean over 12 would be far smaller
        torch.testing.assert_close(
            state["model"][f"{name}.running_var"], variance, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("check", ["on", "off"])
def test_weights_that_diverged(check, tmp_path, data) -> None:
    flags = (*flags_of("batchnorm"), "--norm-nan-check", check)
    path, state = checkpoint(tmp_path, data, *flags)
    state["model"]["encoder.layers.0.fc2.bias"][0] = float("nan")
    with pytest.raises(CommandError, match="weights have diverged: encoder.layers.1.self_attn"):
        reestimate(state, path, 2)


def test_a_checkpoint_without_settings(tmp_path, data) -> None:
    path = tmp_path / "run.pt"
    torch.save({**run_state(data), "cfg": None}, path)
    with pytest.raises(CommandError, match="has no entry 'cfg'"):
        build_model(path)
