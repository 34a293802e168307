"""The batches and models on which the claims are measured, and passes through the models.

Both models have the same layers, placements and norms as trained models, without dropout:

simplified
    The setting of Xiong et al. 2020, section 3.3: one stack of L layers with one head, d x d
    matrices with Xavier normal weights, W_Q = W_K = 0, no biases, and normal inputs with variance
    1. A placement with its own initialization keeps it. The loss is the cross-entropy of a softmax
    over W^emb x, with uniform labels that are independent of the input.

full
    fairseq's Transformer as ``norm_transformer`` builds it: L encoder and L decoder layers, FFN of
    4 d, heads of 64 channels, sinusoidal positions, the initialization of ``--norm-init``, and
    decoder embeddings tied to the output projection.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.data.data_utils import infer_language_pair
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer.transformer_base import Embedding
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor, nn

from norm_plugin.checkpoints.fairseq_input import fairseq_errors
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.config import build_config
from norm_plugin.models.initialization import (
    XAVIER,
    attention_projections,
    default_init,
    initialize,
    linear_maps,
)
from norm_plugin.models.recording import real_rows
from norm_plugin.models.settle import apply_placement, settle
from norm_plugin.models.stacks import NormTransformerEncoder
from norm_plugin.models.translation import NormTransformerModel
from norm_plugin.norms import Norm
from norm_plugin.placements import SUM

VOCABULARY = 1000
"""The number of types of random tokens, without fairseq's special symbols."""
SENTENCES, LENGTH = 8, 16
"""The size of a batch of random tokens; sentences of a corpus have their own lengths."""
RANDOM, REAL = "random", "real"
HEAD_CHANNELS = 64
WARMUP_UPDATES = 4000
"""The warm-up of norms that have one, chosen so that the first update is within it."""


# Batches


class Batch(NamedTuple):
    """The tokens of one batch, (B, T) each; source and target may differ in T.

    The source is padded on the left, the target on the right. The decoder's input ``previous`` is
    the target shifted by one.
    """

    source: Tensor
    previous: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)  # hashed by identity, because fairseq's dictionaries have no hash
class Batches:
    """A source of batches.

    Attributes:
        source_words, target_words: the dictionaries.
        read: batches of a corpus; empty for random tokens.
    """

    source_words: Dictionary
    target_words: Dictionary
    read: tuple[Batch, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of tokens: ``random`` or ``real``."""
        return REAL if self.read else RANDOM

    def draw(self, seed: int) -> Batch:
        """Return the batch of a seed; random tokens are uniform, without padding."""
        if self.read:
            return self.read[seed]
        dictionary, generator = self.target_words, torch.Generator().manual_seed(seed)
        source, target = (
            torch.randint(
                dictionary.nspecial, len(dictionary), (SENTENCES, LENGTH), generator=generator
            )
            for _ in range(2)
        )
        first = torch.full((SENTENCES, 1), dictionary.eos())
        return Batch(source, torch.cat([first, target[:, :-1]], dim=1), target)


def random_batches() -> Batches:
    """Return batches of random tokens."""
    dictionary = Dictionary()
    for word in range(VOCABULARY):
        dictionary.add_symbol(f"w{word}")
    return Batches(dictionary, dictionary)


def real_batches(data: Path, seeds: int) -> Batches:
    """Return the first sentences of the training data in ``data``, one batch for each seed.

    Raises:
        CommandError: ``data`` is not a folder of fairseq-preprocess, or has too few sentences.
    """
    with fairseq_errors(f"read the binarized data in {data}"):
        source, target = infer_language_pair(str(data))
        if target is None:
            raise LookupError("there is no file such as train.en-de.en.idx; give the folder bin")
        settings = TranslationConfig(
            data=str(data),
            source_lang=source,
            target_lang=target,
            # fairseq interpolates these from other sections of its configuration
            dataset_impl=None,
            train_subset="train",
            required_seq_len_multiple=1,
        )
        task = TranslationTask.setup_task(settings)
        task.load_dataset("train")
    pairs = task.dataset("train")
    if len(pairs) < seeds * SENTENCES:
        raise CommandError(
            f"{data} has {len(pairs)} sentences for training, but --seeds {seeds} needs "
            f"{SENTENCES} per seed"
        )
    batches = tuple(
        batch_of(pairs.collater([pairs[SENTENCES * seed + index] for index in range(SENTENCES)]))
        for seed in range(seeds)
    )
    return Batches(task.source_dictionary, task.target_dictionary, batches)


def batch_of(sample: Any) -> Batch:
    """Return the tokens of a batch of fairseq's translation task."""
    tokens = sample["net_input"]
    return Batch(tokens["src_tokens"], tokens["prev_output_tokens"], sample["target"])


# Models


@dataclass(frozen=True)
class Setting:
    """A model in training mode, with a batch.

    Attributes:
        layers: the layers of the stack that computes the logits.
        dim: d of its hidden states. The output of a layer may have more streams after the first d
            channels.
        run: returns the logits of the batch, (T, B, V) or (B, T, V), and if the model returns them,
            the input of the first layer and the output of each layer, each (T, B, d or more).
        labels: the labels, in the shape of the logits without V; ``pad`` at positions without loss.
        real: a mask of the real positions of the hidden states, (T, B).
    """

    model: Any
    layers: list[Any]
    dim: int
    run: Callable[[], tuple[Tensor, list[Tensor]]]
    labels: Tensor
    pad: int
    real: Tensor

    def total_loss(self, logits: Tensor) -> Tensor:
        """Return the cross-entropy in nats, summed over the labels."""
        logits, labels = logits.flatten(0, 1), self.labels.flatten()
        return F.cross_entropy(logits, labels, ignore_index=self.pad, reduction="sum")

    def mean_loss(self, logits: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy per label; runs the model if ``logits`` is None."""
        logits = self.run()[0] if logits is None else logits
        return self.total_loss(logits) / self.labels.ne(self.pad).sum()

    def squared_lengths(self, xs: Sequence[Tensor]) -> Tensor:
        """Return |x|^2 / d of hidden states at the n real positions, (len(xs), n)."""
        lengths = [x.detach()[..., : self.dim][self.real].square().mean(dim=-1) for x in xs]
        return torch.stack(lengths)


def simplified(placement: str, layers: int, dim: int, batches: Batches, seed: int) -> Setting:
    """Return the simplified setting; ``seed`` determines the weights, the labels and the batch."""
    torch.manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # else a seed would draw other weights the first time
        stack = copy.deepcopy(_initialized_encoder(placement, layers, dim, batches))
    nn.init.normal_(stack.embed_tokens.weight, std=dim**-0.5)
    initialization = default_init(placement)
    for layer in stack.layers.children():
        if initialization != XAVIER:
            initialize(layer, initialization, layer.placement.place)
        _simplify(layer, keep_weights=initialization != XAVIER)
    dictionary, tokens = batches.source_words, batches.draw(seed).source
    embedding = torch.randn(len(dictionary), dim) / math.sqrt(dim)  # W^emb
    labels = torch.randint(dictionary.nspecial, len(dictionary), tokens.shape)
    labels = torch.where(tokens.eq(dictionary.pad()), tokens, labels).t()

    def run() -> tuple[Tensor, list[Tensor]]:
        output = stack(tokens, None, return_all_hiddens=True)
        return output["encoder_out"][0] @ embedding.t(), output["encoder_states"]

    real = labels.ne(dictionary.pad())
    return Setting(stack, list(stack.layers.children()), dim, run, labels, dictionary.pad(), real)


@functools.lru_cache(maxsize=1)
def _initialized_encoder(
    placement: str, layers: int, dim: int, batches: Batches
) -> NormTransformerEncoder:
    """Return an encoder for :func:`simplified` to copy, since to build one takes most time."""
    args = plain_settings(placement, layers, dim, sides=("encoder",))
    args.encoder_ffn_embed_dim, args.encoder_attention_heads = dim, 1
    args.no_token_positional_embeddings = True
    dictionary = batches.source_words
    embedding = Embedding(len(dictionary), dim, dictionary.pad())
    return NormTransformerEncoder(build_config(args, ("encoder",)), dictionary, embedding).train()


@torch.no_grad()
def _simplify(layer: nn.Module, keep_weights: bool) -> None:
    """Set Xavier normal weights unless they are kept, W_Q = W_K = 0, and no biases."""
    for linear in linear_maps(layer):
        if not keep_weights:
            nn.init.xavier_normal_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    queries, keys, *_ = attention_projections(layer)
    for linear in (queries, keys):
        nn.init.zeros_(linear.weight)


def full(placement: str, layers: int, dim: int, batches: Batches, seed: int) -> Setting:
    """Return the full model with the weights and the batch of ``seed``."""
    torch.manual_seed(seed)
    args = plain_settings(placement, layers, dim, sides=("encoder", "decoder"))
    for side in ("encoder", "decoder"):
        setattr(args, f"{side}_ffn_embed_dim", 4 * dim)
        setattr(args, f"{side}_attention_heads", max(1, dim // HEAD_CHANNELS))
    args.share_decoder_input_output_embed = True
    ARCH_CONFIG_REGISTRY["norm_transformer"](args)
    task = SimpleNamespace(
        source_dictionary=batches.source_words, target_dictionary=batches.target_words
    )
    model: Any = NormTransformerModel.build_model(args, task)
    return translation_setting(model.train(), batches.draw(seed), batches.target_words.pad())


def translation_setting(model: Any, batch: Batch, pad: int) -> Setting:
    """Return a translation model of fairseq with a batch."""

    def run() -> tuple[Tensor, list[Tensor]]:
        return model(batch.source, None, batch.previous)[0], []

    decoder, real = model.decoder, batch.target.ne(pad).t()
    return Setting(model, list(decoder.layers), decoder.embed_dim, run, batch.target, pad, real)


def plain_settings(
    placement: str, layers: int, dim: int, sides: tuple[str, ...]
) -> argparse.Namespace:
    """Return settled settings of both models, by fairseq's flat names: LayerNorm, no dropout."""
    args = argparse.Namespace(norm_placement=placement, norm_type="layernorm")
    for side in sides:
        setattr(args, f"{side}_layers", layers)
        setattr(args, f"{side}_embed_dim", dim)
    args.dropout = args.attention_dropout = args.activation_dropout = 0.0
    args.warmup_updates = WARMUP_UPDATES
    apply_placement(args, sides=sides)
    settle(args, sides, complete=True)
    return args


# Passes


def layer_gradients(layers: Sequence[Any], loss: Tensor) -> list[float]:
    """Return the Frobenius norm of the gradient of ``loss`` w.r.t. W^2 (``fc2``) of each layer."""
    gradients = torch.autograd.grad(loss, [layer.fc2.weight for layer in layers])
    return [float(torch.linalg.matrix_norm(gradient)) for gradient in gradients]


def record_sums(layers: Sequence[Any]) -> dict[str, list[Tensor]]:
    """Return lists that the next forward fills with the inputs of the norms on the sums."""
    sums: dict[str, list[Tensor]] = {}

    def collect(branch: str, norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        sums.setdefault(branch, []).append(inputs[0].detach())

    for layer in layers:
        place = layer.placement.place
        for branch in place.branches:
            if attribute := layer.attributes.get((branch, SUM)):
                norm = getattr(layer, attribute)
                norm.register_forward_pre_hook(partial(collect, branch), prepend=True)
    return sums


class StackPass(NamedTuple):
    """Measurements of a pass through the simplified setting, at the n real positions.

    Attributes:
        outputs: |x|^2 / d of the embeddings and of the output of each layer, (L + 1, n).
        sums: for each branch, |x|^2 / d of the input of the norm on its sum, (L, n); only if every
            layer has such a norm.
        gradients: the Frobenius norm of the gradient of the mean loss w.r.t. W^2 of each layer, L
            numbers.
    """

    outputs: Tensor
    sums: Mapping[str, Tensor]
    gradients: list[float]


@functools.cache
def stack_pass(placement: str, layers: int, dim: int, batches: Batches, seed: int) -> StackPass:
    """Return one forward and backward pass through the simplified setting, measured by layer."""
    setting = simplified(placement, layers, dim, batches, seed)
    setting.model.requires_grad_(False)
    for layer in setting.layers:
        layer.fc2.requires_grad_(True)
    sums = record_sums(setting.layers)
    logits, states = setting.run()
    lengths = {branch: setting.squared_lengths(xs) for branch, xs in sums.items()}
    return StackPass(
        setting.squared_lengths(states),
        {branch: of_branch for branch, of_branch in lengths.items() if len(of_branch) == layers},
        layer_gradients(setting.layers, setting.mean_loss(logits)),
    )


def through_norm(norm: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient by a norm's input, given g by its output, and the output, (n, C)."""
    leaf = x.detach().requires_grad_()
    output = norm(leaf)
    (dx,) = torch.autograd.grad(output, leaf, g)
    return dx, output.detach()


class Activations(NamedTuple):
    """The input x of an encoder norm, and the gradient g of the mean loss by its output.

    Both are (n, C) in float64, at the n real positions of a batch. ``site`` is its path.
    """

    site: str
    x: Tensor
    g: Tensor


def encoder_activations(model: Any, batches: Batches, seed: int) -> list[Activations]:
    """Return the activations of each encoder norm, in order, in one pass over a seed's batch."""
    pads = batches.source_words.pad(), batches.target_words.pad()
    return activations_of(model, batches.draw(seed), *pads)


def activations_of(model: Any, batch: Batch, source_pad: int, target_pad: int) -> list[Activations]:
    """Return the activations of each encoder norm of a translation model, in one pass."""
    norms = {
        f"encoder.{path}": module
        for path, module in model.encoder.named_modules()
        if isinstance(module, Norm)
    }
    if not norms:
        return []
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def collect(path: str, norm: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        inputs[path], outputs[path] = args[0].detach(), output

    handles = [norm.register_forward_hook(partial(collect, path)) for path, norm in norms.items()]
    loss = translation_setting(model, batch, target_pad).mean_loss()
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(loss, [outputs[path] for path in norms])
    real = batch.source.ne(source_pad).t()
    return [
        Activations(path, real_rows(inputs[path], real).double(), real_rows(g, real).double())
        for path, g in zip(norms, gradients)
    ]
