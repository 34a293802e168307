"""Models built the way fairseq-train and fairseq-hydra-train build them, without data."""

from __future__ import annotations

from types import SimpleNamespace

import fairseq.utils
import pytest
import torch
from fairseq import models, options
from fairseq.data import Dictionary
from forked import ROOT, run_forked
from omegaconf import OmegaConf

import norm_plugin.models  # noqa: F401  registers the architectures
from characters import write_text
from commands import checked

SMALL = ("--encoder-layers", "2", "--decoder-layers", "2", "--dropout", "0")


@pytest.fixture(scope="session")
def task():
    """The parts of a task that a model uses: two dictionaries, here one with 36 words."""
    dictionary = Dictionary()
    for word in range(32):
        dictionary.add_symbol(f"w{word}")
    return SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)


@pytest.fixture
def build(task):
    """A model from the flags of a command line."""

    def from_flags(
        *flags, arch="norm_transformer_multi30k_tiny", seed=1, lr_scheduler="inverse_sqrt"
    ):
        command = ["DATA", "--arch", arch, "--lr-scheduler", lr_scheduler, *SMALL, *flags]
        args = options.parse_args_and_arch(options.get_training_parser(), command)
        torch.manual_seed(seed)
        return models.build_model(args, task)

    return from_flags


@pytest.fixture
def build_yaml(task):
    """A model from the ``model`` group of a YAML file, with the rest of the file around it."""

    def from_yaml(seed=1, lr_scheduler=None, **model):
        small = {
            "_name": "norm_transformer_multi30k_tiny",
            "encoder_layers": 2,
            "decoder_layers": 2,
        }
        scheduler = {"warmup_updates": 4000} if lr_scheduler is None else lr_scheduler
        cfg = OmegaConf.create(
            {"lr_scheduler": scheduler, "model": {**small, "dropout": 0, **model}}
        )
        OmegaConf.set_struct(cfg, True)
        torch.manual_seed(seed)
        return models.build_model(cfg.model, task)

    return from_yaml


@pytest.fixture
def batch(task):
    """Source and previous target tokens (B, T), with ragged padding as fairseq makes it."""
    pad, eos = task.source_dictionary.pad(), task.source_dictionary.eos()
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, 36, (4, 9), generator=generator)
    target = torch.randint(4, 36, (4, 6), generator=generator)
    target[:, 0] = eos
    for row, (src_length, tgt_length) in enumerate([(9, 6), (7, 5), (3, 2), (1, 2)]):
        source[row, : 9 - src_length] = pad  # sources are padded on the left
        target[row, tgt_length:] = pad
    return {
        "src_tokens": source,
        "src_lengths": source.ne(pad).sum(dim=1),
        "prev_output_tokens": target,
    }


@pytest.fixture
def softmax_in_float64(monkeypatch):
    """Lift fairseq's attention over the encoder to float64: its softmax is float32 in any model."""
    monkeypatch.setattr(
        fairseq.utils, "softmax", lambda x, dim, onnx_trace=False: torch.softmax(x, dim)
    )


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A binarized text of characters."""
    return write_text(tmp_path_factory.mktemp("characters") / "bin")


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """The binarized toy corpus: 400, 40 and 40 pairs."""
    out = tmp_path_factory.mktemp("data") / "toy"
    command = ["--out", out, "--train", 400, "--valid", 40, "--test", 40, "--workers", 1]
    checked(run_forked(ROOT / "data-prep" / "toy.py", *command), True)
    return out / "bin"
