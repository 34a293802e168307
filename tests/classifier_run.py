"""A tiny binarized corpus of labeled sentences, and trainings of a tiny classifier on it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from composed import train_by_fairseq
from fairseq.data import indexed_dataset

import norm_plugin.models  # noqa: F401  registers the architectures

LABELS, WORDS = ("bad", "good"), 12
SIZES = {"train": 48, "valid": 12, "test": 12}
FLAGS = (
    *("--cpu", "--task", "sentence_prediction", "--criterion", "sentence_prediction"),
    *("--num-classes", "2", "--arch", "norm_text_classifier_rt", "--encoder-layers", "1"),
    *("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "16", "--optimizer", "adam"),
    *("--encoder-attention-heads", "2", "--lr", "0.01", "--lr-scheduler", "inverse_sqrt"),
    *("--warmup-updates", "2", "--max-tokens", "64", "--num-workers", "0", "--seed", "1"),
    *("--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"),
    "--no-epoch-checkpoints",
)


def write_sentences(folder: Path) -> Path:
    """A prepared corpus in ``folder``, whose label is told by the first word; returns its bin/."""
    generator = torch.Generator().manual_seed(3)
    for side, types in (("input0", [f"w{i}" for i in range(WORDS)]), ("label", LABELS)):
        (folder / "bin" / side).mkdir(parents=True)
        text = "".join(f"{word} 1\n" for word in types)
        (folder / "bin" / side / "dict.txt").write_text(text)
    (folder / "tok").mkdir()
    for split, count in SIZES.items():
        labels = torch.randint(2, (count,), generator=generator).tolist()
        sentences = []
        for label in labels:
            length = int(torch.randint(2, 8, (), generator=generator))
            rest = torch.randint(6, 4 + WORDS, (length,), generator=generator)
            sentences.append(torch.cat([torch.tensor([4 + label]), rest, torch.tensor([2])]))
        classes = [torch.tensor([4 + label, 2]) for label in labels]  # 2: the end, of a label too
        for side, items in (("input0", sentences), ("label", classes)):
            prefix = folder / "bin" / side / split
            builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", vocab_size=4 + WORDS)
            for item in items:
                builder.add_item(item.int())
            builder.finalize(f"{prefix}.idx")
        text = "".join(f"{LABELS[label]}\n" for label in labels)
        (folder / "tok" / f"{split}.label").write_text(text)
    manifest = {"corpus": "tiny", "source": "input0", "target": "label", "checksum": "c0ffee"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder / "bin"


def train_classifier(data: Path, save_dir: Path, *flags: str) -> Path:
    """Train with fairseq-train in this process; returns the folder of the checkpoints."""
    train_by_fairseq(data, *FLAGS, "--save-dir", save_dir, *flags)
    return save_dir
