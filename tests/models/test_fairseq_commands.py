"""The fairseq ring: train, resume, average, generate, validate and the hub, by flags and YAML."""

from __future__ import annotations

import pytest
import torch
from fairseq import checkpoint_utils

from commands import ROOT, SMALL, generate, losses, run, train
from norm_plugin.models import NormTransformerModel

STOCK = (
    *("--encoder-embed-dim", 128, "--decoder-embed-dim", 128, "--encoder-ffn-embed-dim", 256),
    *("--decoder-ffn-embed-dim", 256, "--encoder-attention-heads", 4),
    *("--decoder-attention-heads", 4, "--encoder-normalize-before", "--decoder-normalize-before"),
)
POWERNORM = ("--norm-type", "powernorm", "--norm-placement", "pre", "--norm-warmup-updates", 2)


@pytest.fixture(scope="module")
def stock(toy, tmp_path_factory):
    """Eight updates of fairseq's own Transformer, without the plugin: log and checkpoint."""
    folder = tmp_path_factory.mktemp("stock")
    flags = [*STOCK, "--max-update", 8, "--no-epoch-checkpoints"]
    result = train(toy, folder, *flags, arch="transformer", plugin=None)
    return losses(result), folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def trained(toy, tmp_path_factory):
    """Six updates of powernorm in one go, with a checkpoint at each epoch and third update."""
    folder = tmp_path_factory.mktemp("powernorm")
    flags = [*POWERNORM, "--max-update", 6, "--save-interval-updates", 3]
    return losses(train(toy, folder, *flags)), folder


def test_layernorm_trains_like_stock(toy, stock, tmp_path):
    flags = ["--norm-type", "layernorm", "--norm-placement", "pre", "--max-update", 8]
    result = train(toy, tmp_path, *flags, "--no-save")
    expected, _ = stock
    assert list(expected) == list(range(1, 9))
    assert losses(result) == expected


def test_a_stock_checkpoint_decodes_the_same(toy, stock):
    _, checkpoint = stock
    expected = generate(toy, checkpoint)
    ours = generate(toy, checkpoint, "--model-overrides", "{'_name': 'norm_transformer'}")
    assert len(expected) == 40 and ours == expected


def test_a_stock_checkpoint_of_an_older_fairseq_loads(toy, stock, tmp_path):
    state = torch.load(stock[1], weights_only=True)
    state["args"], state["cfg"] = state["cfg"]["model"], None  # as fairseq 0.9 stored settings
    torch.save(state, tmp_path / "older.pt")
    overrides = {"_name": "norm_transformer", "data": str(toy)}
    path = str(tmp_path / "older.pt")
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([path], overrides)
    assert isinstance(model, NormTransformerModel)


def test_average_generate_interactive_validate_and_hub(toy, trained, tmp_path):
    _, folder = trained
    averaged = tmp_path / "averaged.pt"
    run(
        *("norm_plugin", "average", "--inputs", folder, "--last-updates", 2),
        *("--output", averaged),
    )
    translations = generate(toy, averaged)
    assert len(translations) == 40

    source = (toy.parent / "tok" / "test.en").read_text().splitlines()[0]
    common = (toy, "--user-dir", ROOT / "norm_plugin", "--path", averaged, "--cpu")
    result = run(
        *("fairseq_cli.interactive", *common, "--beam", 2, "--max-len-b", 20), stdin=source + "\n"
    )
    (spoken,) = [line.split("\t")[2] for line in result.stdout.splitlines() if line[:2] == "H-"]
    assert spoken == translations["H-0"][1]

    result = run(
        *("fairseq_cli.validate", *common, "--valid-subset", "valid", "--max-tokens", 512),
        *("--task", "translation"),
    )
    assert "valid on 'valid' subset | loss" in result.stdout + result.stderr

    hub = NormTransformerModel.from_pretrained(str(tmp_path), averaged.name, str(toy))
    assert hub.translate(source, beam=2, max_len_b=20) == spoken
    norm = hub.models[0].encoder.layers[0].self_attn_layer_norm
    assert norm.warmup_updates == 2 and not norm.in_warmup


def test_hydra_trains_like_the_command_line(toy, trained, tmp_path):
    expected, _ = trained
    overrides = {
        "task.data": toy,
        "checkpoint.save_dir": tmp_path,
        "common.user_dir": ROOT / "norm_plugin",
        "common.seed": SMALL["--seed"],
        "common.log_interval": 1,
        "common.log_format": "json",
        "dataset.max_tokens": SMALL["--max-tokens"],
        "optimization.lr": "[0.003]",
        "optimization.max_update": 6,
        "optimization.clip_norm": 0.0,
        "lr_scheduler.warmup_updates": SMALL["--warmup-updates"],
        "lr_scheduler.warmup_init_lr": -1,
        "optimizer.adam_betas": "'(0.9, 0.999)'",
        "model.encoder_layers": 1,
        "model.decoder_layers": 1,
        "model.norm_type": "powernorm",
        "+model.norm_warmup_updates": 2,
    }
    overriding = [f"{key}={value}" for key, value in overrides.items()]
    config = ("--config-dir", ROOT / "configs", "--config-name", "toy")
    result = run("fairseq_cli.hydra_train", *config, *overriding)
    assert losses_of_hydra(result) == expected
    # resumed from the update before the last, it ends where it did
    (tmp_path / "checkpoint_last.pt").unlink()
    overriding[overriding.index("optimization.max_update=6")] = "optimization.max_update=7"
    run("fairseq_cli.hydra_train", *config, *overriding)
    assert len(generate(toy, tmp_path / "checkpoint_last.pt")) == 40


def losses_of_hydra(result):
    """hydra writes ``[time][train_inner][INFO] - {...}``."""
    lines = result.stdout.replace("[train_inner][INFO] - ", "| train_inner | ")
    result.stdout, result.stderr = lines, ""
    return losses(result)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--norm-type", "powrnorm"], "invalid choice: 'powrnorm'"),
        (["--norm-alpha-fwd", 0.9], "but the chosen norms are layernorm: drop it"),
    ],
)
def test_bad_flags_stop_before_anything_is_written(flags, message, toy, tmp_path):
    save_dir = tmp_path / "checkpoints"
    result = train(toy, save_dir, *flags, check=False)
    assert result.returncode != 0
    assert message in result.stderr.splitlines()[-1]
    assert not save_dir.exists()
