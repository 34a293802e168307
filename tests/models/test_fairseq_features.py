"""fairseq's own features around a model, with every norm at every site."""

from __future__ import annotations

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.sequence_generator import SequenceGenerator

from in_process import DISTINCT, everywhere, train_here
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
    for key, value in ema.state_dict().items():
        if not any(word in key for word in left_out):
            # three averages in float32, each of three roundings (6e-8) of values of size 1
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6, msg=key)


@pytest.fixture(scope="module")
def ensemble_members(toy, tmp_path_factory):
    """A checkpoint for each norm, after two updates."""
    folder = tmp_path_factory.mktemp("members")
    with pytest.MonkeyPatch.context() as patch:
        for name in DISTINCT:
            train_here(
                patch, toy, folder / name, *everywhere(name), "--max-update", 2,
                "--disable-validation",
            )  # fmt: skip
    return [str(folder / name / "checkpoint_last.pt") for name in DISTINCT]


def test_an_ensemble_of_several_norms_decodes(ensemble_members):
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(ensemble_members)
    kinds = [type(model.encoder.layers[0].self_attn_layer_norm) for model in models]
    assert kinds == [norm_spec(name).cls for name in DISTINCT]
    task.load_dataset("test")
    sample = task.dataset("test").collater([task.dataset("test")[i] for i in range(3)])
    generator = SequenceGenerator(models, task.target_dictionary, beam_size=2, max_len_b=8)
    # an ensemble averages probabilities
    probabilities = [first_token_probabilities(model.eval(), sample, task) for model in models]
    mean = torch.stack(probabilities).mean(dim=0).log()
    for row, found in enumerate(generator.generate(models, sample)):
        token = found[0]["tokens"][0]
        # float32 logits of one step, alone and with others: some hundred roundings of 6e-8 at most
        # on the way through a layer a side; a mean of logarithms would be tenths away
        torch.testing.assert_close(
            found[0]["positional_scores"][0], mean[row, token], rtol=1e-4, atol=1e-4
        )


def first_token_probabilities(model, sample, task):
    """(B, V), of the first target token."""
    net_input = dict(sample["net_input"])
    start = task.target_dictionary.eos()
    net_input["prev_output_tokens"] = net_input["prev_output_tokens"][:, :1].fill_(start)
    with torch.no_grad():
        return model(**net_input)[0][:, 0].softmax(dim=-1)
