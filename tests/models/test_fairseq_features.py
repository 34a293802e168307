"""fairseq's own features around a model, with every norm at every site."""

from __future__ import annotations

import pytest
import torch
from fairseq.modules import FairseqDropout

from in_process import everywhere, train_here
from norm_plugin.norms import Norm, norm_spec

FEATURES = (
    *("--encoder-layers", 2, "--decoder-layers", 2, "--encoder-layerdrop", 0.3),
    *("--decoder-layerdrop", 0.3, "--quant-noise-pq", 0.2, "--quant-noise-pq-block-size", 4),
    *("--store-ema", "--ema-decay", 0.75, "--share-all-embeddings", "--layernorm-embedding"),
    *("--no-decoder-final-norm", "--max-update", 3, "--disable-validation"),
)


@pytest.mark.parametrize("name", ["powernorm", "layernorm"])
def test_ema_layerdrop_quant_noise_and_shared_embeddings(name, toy, tmp_path, monkeypatch):
    seen = []

    def keep_start(model):
        model.register_forward_pre_hook(
            lambda *_: seen.append({k: v.clone() for k, v in model.state_dict().items()})
        )

    trainer = train_here(
        monkeypatch, toy, tmp_path, *everywhere(name), *FEATURES, prepare=keep_start
    )
    model, ema = trainer.get_model(), trainer.ema.get_model()
    kinds = [type(module) for module in model.modules() if isinstance(module, Norm)]
    # 2 x 2 + 1 and the embeddings in the encoder, 2 x 3 and the embeddings in the decoder
    assert kinds == [norm_spec(name).cls] * (4 + 1 + 1 + 6 + 1)
    assert model.decoder.layer_norm is None
    _, *states = [*seen, model.state_dict()]
    assert len(states) == 3
    expected = dict(states[0])  # fairseq makes its copy after the first update
    for state in states:
        for key, value in state.items():
            averaged = 0.75 * expected[key] + 0.25 * value
            expected[key] = averaged if value.is_floating_point() else value
    # fairseq decays shared weights once for each of their names, and no "version"
    left_out = ("embed_tokens", "output_projection", "version")
    assert list(ema.state_dict()) == list(model.state_dict())  # the final norms, too
    for key, value in ema.state_dict().items():
        if not any(word in key for word in left_out):
            # three averages in float32, each of three roundings (6e-8) of values of size 1
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6, msg=key)


MODULES = '["TransformerModel","TransformerEncoder","TransformerDecoder","TransformerEncoderLayer"]'
"""The modules to retain in fairseq's example of quality estimation."""


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("TransformerEncoder", {"NormTransformerEncoder"}),
        (["TransformerDecoderLayer"], {"NormTransformerDecoderLayer"}),
        (["TransformerEncoderLayerBase"], {"NormTransformerEncoderLayer"}),
        (["NormTransformerEncoder", "MultiheadAttention"], {"MultiheadAttention"}),
        (MODULES, {"NormTransformerDecoder", "NormTransformerEncoderLayer"}),
        (None, {"NormTransformerDecoderLayer", "MultiheadAttention"}),
    ],
)
def test_dropouts_are_kept_by_the_names_of_fairseqs_classes(build, given, kept):
    model = build()
    model.make_generation_fast_(retain_dropout=True, retain_dropout_modules=given)
    dropouts = [module for module in model.modules() if isinstance(module, FairseqDropout)]
    on = {dropout.module_name for dropout in dropouts if dropout.apply_during_inference}
    off = {dropout.module_name for dropout in dropouts if not dropout.apply_during_inference}
    assert kept <= on and not on & off


def test_a_name_without_a_dropout_is_refused(build):
    with pytest.raises(ValueError, match="names no dropout of this model; choose from Transformer"):
        build().make_generation_fast_(retain_dropout=True, retain_dropout_modules=["Transformer"])
