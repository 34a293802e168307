"""TorchScript takes fairseq's own model with the weights of ours: see docs/kernels.md."""

from __future__ import annotations

import torch

SIZES = (("embed-dim", 128), ("ffn-embed-dim", 256), ("attention-heads", 4))


def test_a_model_with_layernorm_is_scripted_as_stock(build, batch):
    ours = build("--norm-type", "layernorm").eval()
    flags = [f"--{side}-{name}={value}" for side in ("encoder", "decoder") for name, value in SIZES]
    stock = build("--decoder-output-dim=128", *flags, arch="transformer").eval()
    stock.load_state_dict(ours.state_dict())
    scripted = torch.jit.script(stock)
    logits, _ = scripted(batch["src_tokens"], batch["src_lengths"], batch["prev_output_tokens"])
    # rounding of float32 after four layers, since TorchScript may order sums differently
    torch.testing.assert_close(logits, ours(**batch)[0], rtol=0, atol=1e-5)
