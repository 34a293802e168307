"""A run stops at the first norm whose input is not finite."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from fairseq.nan_detector import NanDetector

from commands import train
from norm_plugin.models.divergence import root_mean_square

PRE = ("--norm-placement", "pre")
SITE = "encoder.layers.1.final_layer_norm"


def spoil(model, value):
    """Make the output of the second layer's attention ``value``: the norm after it sees it."""
    with torch.no_grad():
        model.encoder.layers[1].self_attn.out_proj.bias[3] = value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_site_the_update_and_the_last_finite_values_are_named(value, build, batch):
    model = build("--norm-type", "powernorm", "--norm-warmup-updates", "1", *PRE)
    model.set_num_updates(100)
    inputs = []
    norm = model.get_submodule(SITE)
    handle = norm.register_forward_pre_hook(lambda _, args: inputs.append(args))
    model(**batch)
    handle.remove()
    low, high = norm.psi2.min().item(), norm.psi2.max().item()
    x, mask, batch_first = inputs[0]
    assert not batch_first
    rms = x[~mask.t()].square().mean().sqrt().item()
    spoil(model, value)
    model.set_num_updates(200)
    with pytest.raises(FloatingPointError) as error:
        model(**batch)
    message = str(error.value)
    assert message.startswith(
        f"{SITE} (PowerNorm): its input has a NaN or an infinity in update 201"
    )
    assert f"the last finite one, in update 101, had a root mean square of {rms:.4g}" in message
    assert f"its last finite psi2 is within {low:.4g} and {high:.4g}" in message


def test_only_training_is_watched_and_off_watches_nothing(build, batch):
    watched, unwatched = build(*PRE), build(*PRE, "--norm-nan-check", "off")
    for model in (watched.eval(), unwatched):
        spoil(model, math.nan)
        assert model(**batch)[0].isnan().any()


def test_other_updates_are_checked_only_where_fairseq_repeats_one(build, batch):
    model = build(*PRE)
    for update in range(2):  # the second one removes the hooks of the first
        model.set_num_updates(update)
        model(**batch)
    assert len(model.nan_check.last) == 2 * 2 + 1 + 2 * 3 + 1
    spoil(model, math.nan)
    assert model(**batch)[0].isnan().any()
    assert not model.get_submodule(SITE)._forward_pre_hooks
    with pytest.raises(FloatingPointError, match=SITE), NanDetector(model):
        model.set_num_updates(1)  # fairseq tells the model again
        model(**batch)
    assert model(**batch)[0].isnan().any()


def test_a_task_that_calls_the_stacks_by_themselves_is_checked_with_the_next_update(build, batch):
    model = build(*PRE)
    spoil(model, math.nan)
    model.set_num_updates(100)
    encoded = model.encoder(batch["src_tokens"], batch["src_lengths"])
    model.decoder(batch["prev_output_tokens"], encoder_out=encoded)
    with pytest.raises(FloatingPointError, match=f"{SITE} .* in update 101"):
        model.set_num_updates(101)
    assert not model.nan_check.measured


def test_padding_may_hold_anything(build, batch, task):
    model = build("--norm-type", "batchnorm", *PRE)
    batch["src_tokens"][3] = task.source_dictionary.pad()  # attention gives NaN for it
    assert model.encoder(batch["src_tokens"], batch["src_lengths"])
    model.nan_check.check(1)


def test_recomputation_is_no_second_look(build, batch):
    plain, checkpointed = build(*PRE), build(*PRE, "--checkpoint-activations")
    for model in (plain, checkpointed):
        model(**batch)[0].sum().backward()
        assert model.nan_check.measured == []
    assert len(plain.nan_check.last) == len(checkpointed.nan_check.last) == 2 * 2 + 1 + 2 * 3 + 1


def test_a_copy_watches_itself(build, batch):
    model = build(*PRE)
    twin = copy.deepcopy(model)
    spoil(twin, math.nan)
    model(**batch)
    with pytest.raises(FloatingPointError, match=SITE):
        twin(**batch)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_root_mean_square_is_that_of_real_positions(dtype):
    x = 300 * torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    mask = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    expected = x[~mask.t()].double().square().mean().sqrt().item()
    for value in (1.0, math.nan, math.inf):
        x[4, 1] = value  # padding
        # sums in float32 of some dozen values
        assert root_mean_square(x, mask).item() == pytest.approx(expected, rel=1e-5)
    x[0, 1, 2] = math.inf
    assert not math.isfinite(root_mean_square(x, mask))


def test_fairseq_train_ends_with_the_message(toy, tmp_path):
    flags = ["--norm-type", "none", "--lr", 1e6, "--warmup-updates", 1, "--max-update", 30]
    result = train(toy, tmp_path, *flags, *PRE, check=False)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("FloatingPointError: encoder.layers.0.") and "(Identity)" in last
    assert (tmp_path / "crash.pt").is_file()  # as the README says
