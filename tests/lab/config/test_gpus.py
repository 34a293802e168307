"""The batch of a configuration on any number of GPUs."""

from __future__ import annotations

import pytest
import torch

from fake_runs import spec_of
from norm_lab.config.configuration import for_workers as for_request
from norm_lab.config.options import SLURM, Request
from norm_lab.engine.stages import run_stages
from norm_plugin.io.command_line import CommandError


@pytest.fixture
def gpus(monkeypatch):
    """``gpus(n)``: this machine has n of them."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def configuration(tokens=4096, freq=1, **common):
    return {
        "common": common,
        "dataset": {"max_tokens": tokens},
        "optimization": {"update_freq": [freq]},
    }


def for_workers(config, gpus, **options):
    """The configuration for a request of GPUs."""
    return for_request(config, Request("toy", gpus=gpus, **options))


def batch(made):
    """Tokens of an update, over all workers."""
    workers = made["distributed_training"]["distributed_world_size"]
    return made["dataset"]["max_tokens"] * made["optimization"]["update_freq"][0] * workers


@pytest.mark.parametrize("count", ["1", "2", "8", "128"])
def test_the_batch_stays(count, gpus):
    gpus(128)
    made = for_workers(configuration(freq=128), count)
    assert made["distributed_training"]["distributed_world_size"] == int(count)
    assert batch(made) == 4096 * 128


@pytest.mark.parametrize(("freq", "count"), [(1, "2"), (128, "6"), (128, "256"), (2, "8")])
def test_a_batch_that_cannot_be_shared_is_refused_unless_told(freq, count, gpus):
    gpus(256)
    with pytest.raises(CommandError, match="cannot share the batch of 4096 x"):
        for_workers(configuration(freq=freq), count)
    made = for_workers(configuration(freq=freq), count, scale_batch_size=True)
    assert made["optimization"]["update_freq"] == [freq]


def test_fewer_tokens_a_gpu_make_it_possible(gpus):
    gpus(8)
    hint = r"\(dataset.max_tokens=512 optimization.update_freq=\[8\]\)"
    with pytest.raises(CommandError, match=hint):
        for_workers(configuration(), "8")
    assert batch(for_workers(configuration(512, freq=8), "8")) == 4096


def test_a_batch_of_sentences(gpus):
    """The settings of a language model have no ``max_tokens``."""
    gpus(8)
    given = {"dataset": {"batch_size": 16}, "optimization": {"update_freq": [4]}}
    assert for_workers(given, "4")["optimization"]["update_freq"] == [1]
    hint = r"8 GPUs of --batch-size 16 .* \(dataset.batch_size=8 optimization.update_freq=\[8\]\)"
    with pytest.raises(CommandError, match=hint):
        for_workers(given, "8")


def test_by_default_it_is_one_gpu_or_the_cpu(gpus):
    for count in (0, 4):  # the settings are those of the same run
        gpus(count)
        made = for_workers(configuration(freq=2), "auto")
        assert made["distributed_training"]["distributed_world_size"] == 1
        assert made["optimization"]["update_freq"] == [2] and "cpu" not in made["common"]
    assert "distributed_training" not in for_workers(configuration(cpu=True), "auto")
    with pytest.raises(CommandError, match="this experiment is for the CPU"):
        for_workers(configuration(cpu=True), "2")


def test_a_slurm_job_has_several_workers_on_cpus(gpus):
    gpus(0)
    made = for_workers(configuration(freq=2, cpu=True), "2", srun=True)
    assert made["distributed_training"]["distributed_world_size"] == 2
    assert made["distributed_training"]["distributed_backend"] == "gloo"
    assert batch(made) == 8192 and made["common"]["cpu"] is True


@pytest.mark.parametrize("key", ["fp16", "bf16"])
def test_half_precision_on_the_cpu_is_refused(key, gpus):
    gpus(0)
    with pytest.raises(CommandError, match=f"{key} needs a GPU.*give common.{key}=false"):
        for_workers(configuration(**{key: True}), "auto")
    for_workers(configuration(**{key: False}), "auto")
    for_workers(configuration(**{key: True}), "auto", launcher=SLURM)  # from its login node


def test_gpus_must_be_there_unless_they_are_elsewhere(gpus):
    gpus(1)
    with pytest.raises(CommandError, match="--gpus is 2, but this machine has 1"):
        for_workers(configuration(freq=2), "2")
    assert batch(for_workers(configuration(freq=2), "2", dry_run=True)) == 8192


@pytest.mark.parametrize("wrong", ["0", "-1", "two", "1.5", ""])
def test_a_wrong_number_is_refused(wrong, gpus):
    gpus(2)
    with pytest.raises(CommandError, match="it must be an integer of 1 or more, or auto"):
        for_workers(configuration(), wrong)


def test_the_configuration_itself_is_not_changed(gpus):
    gpus(2)
    given = configuration(freq=2)
    for_workers(given, "2")
    assert given == configuration(freq=2)


@pytest.mark.parametrize(
    "option", [{"dry_run": True}, {"status": True}, {"srun": True}, {"launcher": SLURM}]
)
def test_the_gpus_of_this_machine_do_not_matter_to_runs_elsewhere(option):
    assert Request("toy", **option).elsewhere and not Request("toy").elsewhere


def test_a_training_on_the_cpu_loads_its_data_itself(gpus):
    """ptb names no workers; each fork would keep a copy of the training's memory for epochs."""
    spec = spec_of("ptb")
    for count in (0, 1):
        gpus(count)
        command = run_stages(spec)[0].command
        assert ("--num-workers 0" in " ".join(command)) == (count == 0)
