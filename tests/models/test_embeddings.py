"""Word embeddings of one length: ``--norm-embedding fixnorm``."""

from __future__ import annotations

import pytest
import torch
from fairseq import checkpoint_utils

from in_process import train_here
from norm_plugin.checkpoints.average import main as average
from norm_plugin.models.embeddings import unit_length
from norm_plugin.models.translation import NormTransformerModel
from stacks_by_hand import NARROW, check_decoding

FIXNORM = (*NARROW, "--norm-embedding", "fixnorm")
SHARED = ("--share-all-embeddings",)


def test_a_vector_keeps_its_direction_and_gets_length_one():
    e = torch.tensor([[3.0, -4.0], [1e-3, 0.0]], dtype=torch.float64)
    expected = torch.tensor([[0.6, -0.8], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(unit_length(e), expected)
    half = unit_length(torch.full((1, 4), 300.0, dtype=torch.float16))
    assert torch.equal(half, torch.full((1, 4), 0.5, dtype=torch.float16))  # its square overflows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_row_of_zeros_stays_zero_and_has_no_gradient(dtype):
    e = torch.tensor([[0.0, 0.0], [0.5, 0.0]], dtype=dtype, requires_grad=True)
    y = unit_length(e)
    (y * torch.ones_like(y)).sum().backward()
    assert torch.equal(y[0], torch.zeros(2, dtype=dtype))
    assert torch.equal(e.grad[0], torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize("flags", [SHARED, ()], ids=["shared", "apart"])
def test_input_and_output_have_vectors_of_one_length(flags, build, batch):
    """The model equals a plain one whose stored embeddings have length 1."""
    model = build(*FIXNORM, *flags).double().eval()
    plain = build(*NARROW, *flags).double().eval()
    state = model.state_dict()
    assert list(plain.state_dict()) == list(state)
    keys = [
        key for key in state if key.endswith(("embed_tokens.weight", "output_projection.weight"))
    ]
    assert len(keys) == 3
    plain.load_state_dict({**state, **{key: unit_length(state[key]) for key in keys}})
    # the division is rounded before or after the rows are taken: float64 rounding only
    torch.testing.assert_close(model(**batch)[0], plain(**batch)[0], rtol=1e-12, atol=1e-12)
    ids = {id(dict(model.named_parameters(remove_duplicate=False))[key]) for key in keys}
    assert len(ids) == (1 if flags else 3)


@pytest.mark.parametrize("flags", [SHARED, ()], ids=["shared", "apart"])
def test_the_length_of_a_stored_vector_has_no_effect(flags, build, batch):
    model = build(*FIXNORM, *flags).double().eval()
    before = model(**batch)[0]
    before.square().sum().backward()
    e = model.encoder.embed_tokens.weight
    # a gradient along e would change its length alone
    torch.testing.assert_close((e.grad * e).sum(-1), torch.zeros_like(e[:, 0]))
    assert e.grad[4:].any()
    with torch.no_grad():
        for weight in {id(w): w for w in _words(model)}.values():
            weight.mul_(7)
    torch.testing.assert_close(model(**batch)[0], before, rtol=1e-12, atol=1e-12)
    check_decoding(model, batch)


def _words(model):
    decoder = model.decoder
    embeddings = (model.encoder.embed_tokens, decoder.embed_tokens, decoder.output_projection)
    return [module.weight for module in embeddings]


def test_it_draws_no_random_numbers(build):
    states = [build(*NARROW, *SHARED, *flags).state_dict() for flags in ((), FIXNORM)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_it_is_trained_averaged_and_loaded_by_the_hub(toy, tmp_path, monkeypatch):
    flags = ("--norm-embedding", "fixnorm", "--share-decoder-input-output-embed")
    flags += ("--max-update", 4, "--save-interval-updates", 2, "--keep-interval-updates", 2)
    flags += ("--disable-validation", "--no-epoch-checkpoints")
    trained = train_here(monkeypatch, toy, tmp_path, *flags).get_model().decoder
    pad = trained.padding_idx
    assert not trained.embed_tokens.weight[pad].any()  # Adam has not moved the padding
    averaged = tmp_path / "averaged.pt"
    average(["--inputs", str(tmp_path), "--last-updates", "2", "--output", str(averaged)])
    hub = NormTransformerModel.from_pretrained(str(tmp_path), averaged.name, str(toy))
    loaded = hub.models[0].decoder
    lengths = loaded.embed_tokens(torch.arange(4, 20)).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(16))
    assert loaded.output_projection.weight is loaded.embed_tokens.weight
    last = tmp_path / "checkpoint_last.pt"
    with pytest.raises(ValueError, match="norm_embedding of the words: stored fixnorm, given none"):
        train_here(monkeypatch, toy, tmp_path / "other", *flags[2:], "--restore-file", last)
    assert checkpoint_utils.load_checkpoint_to_cpu(str(last))["cfg"]["model"]
