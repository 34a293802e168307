"""examples/huggingface.py, and replace_norms in models of transformers."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch

import huggingface
from norm_plugin.norms import load_replaced, replace_norms

pytest.importorskip("transformers", reason="no transformers: pip install norm_plugin[huggingface]")
MODELS = ["bert", "gpt2", "llama"]
NORMS_OF = {"bert": "layernorm", "gpt2": "layernorm", "llama": "rmsnorm"}


def new_model(name):
    torch.manual_seed(1)
    return huggingface.new_model(name)


def new_batch():
    torch.manual_seed(2)
    return huggingface.make_batch()


def step(model, batch):
    torch.manual_seed(3)  # of dropout
    output = model.train()(**batch)
    output.loss.backward()
    return output.logits.detach()


@pytest.mark.parametrize("name", MODELS)
def test_the_norm_that_was_there_changes_nothing(name):
    stock = new_model(name)
    ours = copy.deepcopy(stock)
    replaced = replace_norms(ours, NORMS_OF[name])
    exact = NORMS_OF[name] == "layernorm"  # the same kernel of torch
    close = {"rtol": 0, "atol": 0} if exact else {}
    batch = new_batch()
    assert len(replaced) == sum(
        type(module).__name__.endswith("Norm") for module in stock.modules()
    )
    torch.testing.assert_close(step(ours, batch), step(stock, batch), **close)
    for mine, theirs in zip(ours.parameters(), stock.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, **close)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("norm", ["batchnorm", "powernorm"])
def test_padding_changes_no_statistic(name, norm):
    batch = new_batch()
    assert (batch["attention_mask"] == 0).any()
    models = []
    for value in (0.0, 9.0):
        model = new_model(name)
        with torch.no_grad():
            model.get_input_embeddings().weight[huggingface.PADDING] = value
        replace_norms(model, norm)
        step(model, batch)
        models.append(model)
    for first, second in zip(*(model.buffers() for model in models)):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_checkpointing(name):
    models = [new_model(name) for _ in range(2)]
    for model in models:
        replace_norms(model, "batchnorm")
    models[1].activation_checkpointing_enable({"use_reentrant": False})
    batch = new_batch()
    for model in models:
        step(model, batch)
    for first, second in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(first.grad, second.grad)
    for first, second in zip(*(model.buffers() for model in models)):
        torch.testing.assert_close(first, second)


def test_the_example(capsys):
    scores = huggingface.main(["--norm-type", "powernorm", "--updates", "20"])
    printed = capsys.readouterr().out
    assert "bert.encoder.layer.0.attention.output.LayerNorm: LayerNorm -> PowerNorm" in printed
    assert f"accuracy after {scores['accuracy after']:.1f}" in printed
    assert "update 20: loss" in printed


@pytest.mark.parametrize(
    ("part", "norm"), [(None, "powernorm"), (None, "dyt"), ("bert", "batchnorm")]
)
def test_a_saved_model_is_loaded_with_its_norms(tmp_path, part, norm):
    model, batch = new_model("bert"), new_batch()
    replace_norms(getattr(model, part) if part else model, norm, keep="*embeddings.LayerNorm")
    step(model, batch)  # moves running statistics
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    model.eval().save_pretrained(tmp_path)
    loaded = load_replaced(type(model), tmp_path).eval()
    assert type(loaded) is type(model)
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert loaded.config.replaced_norms == model.config.replaced_norms
    step(loaded, batch)  # the padding reaches the norms


def test_the_stacks_of_an_encoder_decoder_are_loaded_with_their_norms(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}
    model = transformers.T5Model(transformers.T5Config(**sizes)).eval()
    replace_norms(model.get_encoder(), "powernorm")
    replace_norms(model.get_decoder(), "dyt", keep={"final_layer_norm"})  # a set is no JSON
    model.save_pretrained(tmp_path)
    loaded = load_replaced(transformers.T5Model, tmp_path).eval()
    assert str(loaded) == str(model)
    tokens = torch.tensor([[5, 6, 7]])
    outputs = (each(input_ids=tokens, decoder_input_ids=tokens)[0] for each in (loaded, model))
    assert torch.equal(*outputs)


def test_models_with_one_configuration_are_saved_each_with_its_norms(tmp_path):
    first = new_model("bert")
    models = {name: type(first)(first.config) for name in ("dyt", "seednorm")}
    for name, model in models.items():
        replace_norms(model, name)
    for name, model in models.items():
        copied = pickle.loads(pickle.dumps(model))
        copied.save_pretrained(tmp_path / name)
        assert str(load_replaced(type(first), tmp_path / name)) == str(model)
    first.save_pretrained(tmp_path / "first")
    assert not hasattr(first.config, "replaced_norms")


def test_a_model_without_replaced_norms_is_not_loaded_as_one(tmp_path):
    model = new_model("bert")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has no replaced_norms: .* load it by from_pretrained"):
        load_replaced(type(model), tmp_path)


def test_a_causal_model_without_values_is_warned_of():
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):  # as inside from_pretrained
        causal = transformers.BloomModel(transformers.BloomConfig(hidden_size=8, n_layer=1))
        bert = new_model("bert")
    with pytest.warns(UserWarning, match=r"the model \(BloomModel\) is causal: in training"):
        replace_norms(causal, "batchnorm")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace_norms(bert, "batchnorm")
