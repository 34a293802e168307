#!/usr/bin/env python3
"""Put any norm into a model of Hugging Face's transformers, and train it on a made-up task.

    python examples/huggingface.py --model bert --norm-type powernorm

The model is built from a configuration, so nothing is downloaded. One call replaces its norms:

    replace_norms(model, "powernorm")

The task: does the first token of a sequence occur in it again? The sequences have several lengths
and are padded, and the norms get the padding mask from the model's `attention_mask`.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from torch import Tensor

from divergence import check_finite
from norm_plugin.io.command_line import at_least
from norm_plugin.norms import add_norm_arguments, norm_options, replace_norms

TYPES, LENGTH, BATCH, LEARNING_RATE = 20, 12, 64, 0.001
PADDING = 0
SIZES: dict[str, dict[str, Any]] = {
    "bert": {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "gpt2": {"num_hidden_layers": 2, "num_attention_heads": 4},
    "llama": {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
}


def new_model(name: str) -> Any:
    """Return a small sequence classifier, with random weights."""
    try:
        from transformers import AutoConfig, AutoModelForSequenceClassification
    except ImportError as error:
        raise ValueError(f"{error}; pip install 'norm_plugin[huggingface]'") from error
    common = {"vocab_size": TYPES, "hidden_size": 64, "pad_token_id": PADDING, "num_labels": 2}
    config = AutoConfig.for_model(name, **common, **SIZES[name])
    return AutoModelForSequenceClassification.from_config(config)


def make_batch() -> dict[str, Tensor]:
    """Return tokens (B, T), the attention mask (B, T) with 0 at padding, and labels (B,)."""
    tokens = torch.randint(1, TYPES, (BATCH, LENGTH))
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH, 1))
    mask = torch.arange(LENGTH) < lengths
    tokens = torch.where(mask, tokens, PADDING)
    again = (tokens[:, 1:] == tokens[:, :1]).any(dim=1)
    return {"input_ids": tokens, "attention_mask": mask.long(), "labels": again.long()}


@torch.no_grad()
def accuracy(model: torch.nn.Module, batches: int = 8) -> float:
    """Return the share of right answers on new sequences, in percent."""
    model.eval()
    right = []
    for _ in range(batches):
        batch = make_batch()
        right.append(model(**batch).logits.argmax(dim=1) == batch["labels"])
    return 100 * torch.cat(right).float().mean().item()


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Run the command; return the accuracy before and after training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(SIZES), default="bert", help="default: %(default)s")
    parser.add_argument(
        "--updates", type=at_least(1), default=500, metavar="N", help="default: 500"
    )
    parser.add_argument("--seed", type=int, default=1)
    add_norm_arguments(parser)
    args = parser.parse_args(argv)
    torch.manual_seed(args.seed)
    model = new_model(args.model)
    for replaced in replace_norms(model, args.norm_type, **norm_options(args)):
        print(replaced)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    before = accuracy(model)
    for update in range(1, args.updates + 1):
        model.train()
        loss = model(**make_batch()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        check_finite(f"update {update}", loss.item(), model)
        if update % max(1, args.updates // 5) == 0:
            print(f"update {update}: loss {loss.item():.3f}, accuracy {accuracy(model):.1f}")
    scores = {"accuracy before": before, "accuracy after": accuracy(model)}
    print(", ".join(f"{name} {score:.1f}" for name, score in scores.items()))
    return scores


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        sys.exit(f"error: {error}")
