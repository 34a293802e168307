"""A tiny binarized corpus and checkpoints of a tiny Transformer, as fairseq-train stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from composed import configure
from fairseq import tasks
from fairseq.data import indexed_dataset
from omegaconf import OmegaConf

import norm_plugin.models  # noqa: F401  registers the architectures

DIM, FFN, WORDS = 8, 16, 16


def write_dictionaries(folder: Path) -> Path:
    """The dictionaries of a binarized corpus: 16 entries, fairseq's four among them."""
    folder.mkdir(parents=True)
    for language in ("en", "de"):
        text = "".join(f"w{i} 1\n" for i in range(WORDS - 4))
        (folder / f"dict.{language}.txt").write_text(text)
    return folder


def write_pairs(folder: Path, pairs: int) -> Path:
    """Random sentences of two to nine words and an end, as the training set in ``folder``."""
    generator = torch.Generator().manual_seed(7)
    for language in ("en", "de"):
        prefix = str(folder / f"train.en-de.{language}")
        builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", vocab_size=WORDS)
        for _ in range(pairs):
            length = int(torch.randint(2, 10, (), generator=generator))
            sentence = torch.randint(4, WORDS, (length,), generator=generator)
            builder.add_item(torch.cat([sentence, torch.tensor([2])]).int())  # 2: the end
        builder.finalize(f"{prefix}.idx")
    return folder


def run_settings(data: Path, *flags: str) -> Any:
    """The configuration of a run of one layer a side, with 100 tokens per batch."""
    arguments = [str(data), "--task=translation", "-sen", "-tde", "--cpu", "--num-workers=0"]
    arguments += ["--arch=norm_transformer", "--share-all-embeddings", "--seed=3"]
    for side in ("encoder", "decoder"):
        arguments += [f"--{side}-layers=1", f"--{side}-embed-dim={DIM}"]
        arguments += [f"--{side}-ffn-embed-dim={FFN}", f"--{side}-attention-heads=2"]
    arguments += ["--max-tokens=100", "--save-dir=/home/someone/checkpoints", *flags]
    return configure(*arguments)


def run_state(data: Path, *flags: str, updates: int = 90, seed: int = 0) -> dict[str, Any]:
    """The content of a checkpoint of such a run, with fresh weights."""
    cfg = run_settings(data, *flags)
    torch.manual_seed(seed)
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    model.set_num_updates(updates)
    wall = (800, "train_wall", "StopwatchMeter", {"sum": 20.0, "n": 0.0})
    meter = (180, "wpb", "AverageMeter", {"sum": torch.tensor(5000), "count": 50})
    return {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model.state_dict(),
        "optimizer_history": [
            {"num_updates": updates, "optimizer_name": "Adam", "lr_scheduler_state": {}}
        ],
        "task_state": {},
        "extra_state": {
            "train_iterator": {"epoch": 4},
            "previous_training_time": 33.25,
            "best": 2.5,
            "metrics": {"default": [wall, meter]},
        },
        "last_optimizer_state": {},
    }
