"""``norm_masked_lm``: fairseq's RoBERTa bit by bit, from pre-training to fine-tuning."""

from __future__ import annotations

import argparse
import copy
from types import SimpleNamespace

import pytest
import torch
from composed import train_by_fairseq
from fairseq import models
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.data import Dictionary, indexed_dataset
from fairseq.models import ARCH_MODEL_INV_REGISTRY

from characters import TRAINING, write_text
from in_process import DISTINCT
from norm_plugin.models import fold_norms
from norm_plugin.norms import Norm, norm_spec

TINY = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
FOLDABLE = {"norm_type": "batchnorm", "norm_layer_scale_groups": 0, "norm_placement": "pre"}


@pytest.fixture(scope="module")
def task():
    """The part of the task masked_lm that a model uses: a dictionary, with the mask at its end."""
    dictionary = Dictionary()
    for word in range(20):
        dictionary.add_symbol(f"w{word}")
    dictionary.add_symbol("<mask>")
    return SimpleNamespace(
        source_dictionary=dictionary, target_dictionary=dictionary, max_positions=lambda: 12
    )


def build(task, arch="norm_masked_lm", seed=1, **settings):
    args = argparse.Namespace(arch=arch, **{**TINY, **settings})
    for flag in ("mha_reg_scale_factor", "ffn_reg_scale_factor"):  # of fairseq's parser
        setattr(args, flag, 0.0)
    args.checkpoint_activations = args.offload_activations = False
    args.min_params_to_wrap = 10**8
    torch.manual_seed(seed)
    return models.build_model(args, task)


def sample(task):
    """Tokens (B, T) of which some are masked, the last rows shorter."""
    dictionary = task.source_dictionary
    tokens = torch.randint(4, 24, (4, 9), generator=torch.Generator().manual_seed(2))
    tokens[:, 0] = dictionary.bos()
    tokens[2, 6:] = tokens[3, 4:] = dictionary.pad()
    target = torch.full_like(tokens, dictionary.pad())
    target[:, 2] = tokens[:, 2]
    tokens[:, 2] = dictionary.index("<mask>")
    lengths = tokens.ne(dictionary.pad()).sum(dim=1)
    net_input = {"src_tokens": tokens, "src_lengths": lengths}
    return {"net_input": net_input, "target": target, "ntokens": 4, "nsentences": 4}


def parameters(model):
    return [(key, tuple(value.shape)) for key, value in model.state_dict().items()]


@pytest.mark.parametrize("name", ARCH_MODEL_INV_REGISTRY["roberta"])
def test_each_stock_architecture_has_its_own_of_the_same_shape(name, task):
    stock, ours = (parameters(build(task, arch)) for arch in (name, f"norm_{name}"))
    assert len(stock) > 40 and ours == stock


@pytest.mark.parametrize("name", ["roberta", "roberta_prenorm"])
def test_layernorm_gives_the_loss_and_the_gradients_of_stock(name, task):
    results = []
    for arch in (name, f"norm_{name}"):
        model = build(task, arch).train()
        torch.manual_seed(4)
        loss, *_ = MaskedLmLoss(SimpleNamespace(tpu=False), task)(model, sample(task))
        loss.backward()
        results.append((loss, model))
    (loss, stock), (our_loss, ours) = results
    assert torch.equal(our_loss, loss) and torch.isfinite(loss)
    gradients = {key: value.grad for key, value in ours.named_parameters()}
    for key, value in stock.named_parameters():
        assert torch.equal(gradients.pop(key), value.grad), key
    assert not gradients


@pytest.mark.parametrize(
    ("name", "placement"), [*((name, "pre") for name in DISTINCT), ("powernorm", "post")]
)
def test_every_norm_trains_and_does_not_see_padding(name, placement, task):
    settings = {"norm_type": name, "norm_placement": placement}
    if norm_spec(name).has_option("warmup_updates"):
        settings["norm_warmup_updates"] = 1
    model = build(task, **settings).train()
    kinds = [type(module) for module in model.modules() if isinstance(module, Norm)]
    # two in each of two layers, that of the embeddings, and with pre the final one
    assert kinds == [norm_spec(name).cls] * (5 + (placement == "pre"))
    inputs = sample(task)["net_input"]
    wider = torch.nn.functional.pad(inputs["src_tokens"], (0, 2), value=1)
    logits, logits_of_wider = (
        copy.deepcopy(model)(tokens)[0] for tokens in (inputs["src_tokens"], wider)
    )
    real = inputs["src_tokens"].ne(1)
    # float32 sums in another order, through two layers
    torch.testing.assert_close(logits[real], logits_of_wider[:, :9][real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", [None, "labels"])
def test_folding(head, task):
    model = build(task, **FOLDABLE)
    if head:
        model.register_classification_head(head, num_classes=3)
    inputs = sample(task)["net_input"]
    model.train()(**inputs)
    model.eval()
    expected = [model(**inputs)[0]]
    expected += [model(**inputs, classification_head_name=head)[0]] if head else []
    outcome = {folding.site.flag: folding for folding in fold_norms(model)}
    assert not outcome["encoder-final"].reason and not outcome["encoder-ffn"].reason
    outputs = [model(**inputs)[0]]
    outputs += [model(**inputs, classification_head_name=head)[0]] if head else []
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)  # rounded once, as weights


def test_initial_weights_of_the_plan_are_not_those_of_roberta(task):
    usual, other = (build(task, norm_init=init).encoder for init in ("xavier", "kaiming"))
    first, second = (model.sentence_encoder.layers[1] for model in (usual, other))
    assert not torch.equal(first.self_attn.out_proj.weight, second.self_attn.out_proj.weight)


def test_fixnorm_which_would_leave_the_output_layer_out_is_refused(task):
    with pytest.raises(ValueError, match="--norm-embedding fixnorm is not possible in norm_m"):
        build(task, norm_embedding="fixnorm")


def train(data, save_dir, *flags):
    """fairseq-train in this process; returns the checkpoint."""
    size = [word for key, value in TINY.items() for word in (f"--{key.replace('_', '-')}", value)]
    argv = [data, *TRAINING, *size, "--arch", "norm_masked_lm", "--save-dir", save_dir]
    argv += ["--no-epoch-checkpoints", "--max-update", 2, "--disable-validation", *flags]
    train_by_fairseq(*argv)
    return save_dir / "checkpoint_last.pt"


def test_pretraining_then_finetuning(tmp_path):
    """fairseq fine-tunes RoBERTa like this; --norm-type is kept, and another one is refused."""
    norms = ("--norm-type", "powernorm", "--norm-placement", "pre", "--norm-warmup-updates", 1)
    text = write_text(tmp_path / "labeled" / "input0")
    pretrained = train(
        *(text, tmp_path / "one", "--task", "masked_lm", "--criterion", "masked_lm"),
        *("--tokens-per-sample", 16, "--sample-break-mode", "complete", *norms),
    )
    label = tmp_path / "labeled" / "label"
    label.mkdir()
    (label / "dict.txt").write_text("bad 1\ngood 1\n")
    builder = indexed_dataset.make_builder(str(label / "train.bin"), "mmap", vocab_size=6)
    for number in range(60):
        builder.add_item(torch.tensor([4 + number % 2, 2]).int())
    builder.finalize(str(label / "train.idx"))
    finetuning = (
        *("--task", "sentence_prediction", "--criterion", "sentence_prediction"),
        *("--num-classes", 2, "--init-token", 0, "--max-positions", 16),
        *("--restore-file", pretrained, "--reset-optimizer", "--reset-dataloader"),
        *("--reset-meters", "--reset-lr-scheduler"),
    )
    tuned = train(text.parent, tmp_path / "two", *finetuning, *norms)
    weights = torch.load(tuned, weights_only=True)["model"]
    assert weights["classification_heads.sentence_classification_head.out_proj.weight"].size(0) == 2
    with pytest.raises(ValueError, match="stored powernorm, given layernorm"):
        train(text.parent, tmp_path / "three", *finetuning, "--norm-placement", "pre")
