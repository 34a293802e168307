"""The models that the claims are measured on, their batches, and passes through them.

Both models are built of the same layers, placements and norms as those that users train, without
dropout:

simplified
    The setting of Xiong et al. 2020, section 3.3: one stack of L layers with one head, all matrices
    d x d and Xavier normal, W_Q = W_K = 0, no biases, and inputs that are normal with variance 1. A
    placement with an initialization of its own keeps it. The loss is the cross-entropy of a softmax
    over W^emb x, here with labels that are uniform and independent of the input.

full
    fairseq's Transformer as ``norm_transformer`` builds it: L encoder and L decoder layers, FFN of
    4 d, heads of 64 channels, sinusoidal positions, the initialization of ``--norm-init``, and
    decoder embeddings that are the output projection too.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
from collections.abc import Mapping, Sequence
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

from norm_plugin.checkpoints.building import UNFIT
from norm_plugin.commands.command_line import CommandError
from norm_plugin.models.config import build_config
from norm_plugin.models.initialization import (
    XAVIER,
    attention_projections,
    initialize,
    linear_maps,
    of_placement,
)
from norm_plugin.models.plan import apply_placement, default_warmup
from norm_plugin.models.recording import real_rows
from norm_plugin.models.sites import branch_sites
from norm_plugin.models.stacks import NormTransformerEncoder
from norm_plugin.models.translation import NormTransformerModel
from norm_plugin.norms import Norm
from norm_plugin.placements import SUM

VOCABULARY = 1000
"""Types of random tokens, without fairseq's symbols."""
SENTENCES, LENGTH = 8, 16
"""Of a batch; sentences of a corpus have their own lengths."""
RANDOM, REAL = "random", "real"
HEAD_CHANNELS = 64
WARMUP_UPDATES = 4000
"""Of a norm that has a warm-up: at the first update it is within it."""


class Batch(NamedTuple):
    """Tokens of one batch, (B, T) each; the sides may differ in T.

    Attributes:
        source: padded on the left.
        previous: the target shifted by one, as the decoder gets it.
        target: padded on the right.
    """

    source: Tensor
    previous: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)  # equal to itself only: fairseq's dictionaries have no hash
class Batches:
    """Where batches come from.

    Attributes:
        source_words, target_words: the dictionaries.
        read: batches of a corpus; empty: batches are made up.
    """

    source_words: Dictionary
    target_words: Dictionary
    read: tuple[Batch, ...] = ()

    @property
    def kind(self) -> str:
        """``random`` or ``real``."""
        return REAL if self.read else RANDOM

    def draw(self, seed: int) -> Batch:
        """The batch of a seed; made-up ones are uniform tokens without padding."""
        if self.read:
            return self.read[seed]
        words, generator = self.target_words, torch.Generator().manual_seed(seed)
        source, target = (
            torch.randint(words.nspecial, len(words), (SENTENCES, LENGTH), generator=generator)
            for _ in range(2)
        )
        first = torch.full((SENTENCES, 1), words.eos())
        return Batch(source, torch.cat([first, target[:, :-1]], dim=1), target)


def random_batches() -> Batches:
    """Batches of a made-up dictionary."""
    words = Dictionary()
    for word in range(VOCABULARY):
        words.add_symbol(f"w{word}")
    return Batches(words, words)


def real_batches(data: Path, seeds: int) -> Batches:
    """The first sentences of the training data in ``data``, a batch for each seed.

    Raises:
        CommandError: ``data`` is no folder of fairseq-preprocess, or has too few sentences.
    """
    if not data.is_dir():
        raise CommandError(f"--data {data} is not a folder; give one with binarized data")
    source, target = infer_language_pair(str(data))
    if source is None or target is None:
        raise CommandError(
            f"{data} has no file such as train.en-de.en.idx; give --data the folder of "
            "binarized data, which ends in bin"
        )
    settings = TranslationConfig(
        data=str(data),
        source_lang=source,
        target_lang=target,
        # fairseq would interpolate these from sections that are not here
        dataset_impl=None,
        train_subset="train",
        required_seq_len_multiple=1,
    )
    try:
        task = TranslationTask.setup_task(settings)
        task.load_dataset("train")
    except UNFIT as error:
        raise CommandError(f"cannot read the binarized data in {data}: {error}") from error
    pairs = task.dataset("train")
    if len(pairs) < seeds * SENTENCES:
        raise CommandError(
            f"{data} has {len(pairs)} sentences for training, and --seeds {seeds} needs "
            f"{SENTENCES} for each seed"
        )
    batches = tuple(
        of_sample(pairs.collater([pairs[SENTENCES * seed + index] for index in range(SENTENCES)]))
        for seed in range(seeds)
    )
    return Batches(task.source_dictionary, task.target_dictionary, batches)


def of_sample(sample: Any) -> Batch:
    """The tokens of a batch of fairseq's translation task."""
    tokens = sample["net_input"]
    return Batch(tokens["src_tokens"], tokens["prev_output_tokens"], sample["target"])


# The models


class Setting(NamedTuple):
    """The simplified setting with fresh weights, and a batch for it.

    Attributes:
        stack: in training mode.
        tokens: (B, T).
        output_matrix: W^emb of the softmax over words, normal with variance 1/d, (words, d).
        labels: of the real positions of ``tokens``; padding elsewhere. (T, B).
    """

    stack: NormTransformerEncoder
    tokens: Tensor
    output_matrix: Tensor
    labels: Tensor

    def logits(self, output: Any) -> Tensor:
        """(T, B, words), of what the forward of the stack has returned."""
        x: Tensor = output["encoder_out"][0]
        return x @ self.output_matrix.t()


def simplified(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches, seed: int
) -> Setting:
    """The simplified setting; ``seed`` draws the weights and chooses the batch.

    Raises:
        ValueError: what the plan of a model refuses.
    """
    torch.manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # or a seed would draw other weights the first time
        stack = copy.deepcopy(_unused_stack(placement, norm_type, layers, dim, batches))
    nn.init.normal_(stack.embed_tokens.weight, std=dim**-0.5)
    initialization = of_placement(placement)
    for layer in stack.layers.children():
        if initialization != XAVIER:
            initialize(layer, initialization, layer.placement.place)
        _simplify(layer, keep_weights=initialization != XAVIER)
    words, tokens = batches.source_words, batches.draw(seed).source
    matrix = torch.randn(len(words), dim) / math.sqrt(dim)
    labels = torch.randint(words.nspecial, len(words), tokens.shape)
    labels = torch.where(tokens.eq(words.pad()), tokens, labels).t()
    return Setting(stack, tokens, matrix, labels)


@functools.lru_cache(maxsize=1)
def _unused_stack(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches
) -> NormTransformerEncoder:
    """A stack for :func:`simplified` to copy; drawing weights is most of what building costs."""
    args = _settings(placement, norm_type, layers, dim, sides=("encoder",))
    args.encoder_ffn_embed_dim, args.encoder_attention_heads = dim, 1
    args.no_token_positional_embeddings = True
    words = batches.source_words
    embedding = Embedding(len(words), dim, words.pad())
    return NormTransformerEncoder(build_config(args, ("encoder",)), words, embedding).train()


@torch.no_grad()
def _simplify(layer: nn.Module, keep_weights: bool) -> None:
    """Xavier normal weights unless they are to be kept, W_Q = W_K = 0, and no biases."""
    for linear in linear_maps(layer):
        if not keep_weights:
            nn.init.xavier_normal_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    queries, keys, *_ = attention_projections(layer)
    for linear in (queries, keys):
        nn.init.zeros_(linear.weight)


def full(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches, seed: int
) -> NormTransformerModel:
    """The full model with the weights of ``seed``, in training mode.

    Raises:
        ValueError: what the plan of a model refuses.
    """
    torch.manual_seed(seed)
    args = _settings(placement, norm_type, layers, dim, sides=("encoder", "decoder"))
    for side in ("encoder", "decoder"):
        setattr(args, f"{side}_ffn_embed_dim", 4 * dim)
        setattr(args, f"{side}_attention_heads", max(1, dim // HEAD_CHANNELS))
    args.share_decoder_input_output_embed = True
    ARCH_CONFIG_REGISTRY["norm_transformer"](args)
    task = SimpleNamespace(
        source_dictionary=batches.source_words, target_dictionary=batches.target_words
    )
    model: Any = NormTransformerModel.build_model(args, task)
    return model.train()


def _settings(
    placement: str, norm_type: str, layers: int, dim: int, sides: tuple[str, ...]
) -> argparse.Namespace:
    """What both models have in common, in fairseq's flat names."""
    args = argparse.Namespace(norm_placement=placement, norm_type=norm_type)
    for side in sides:
        setattr(args, f"{side}_layers", layers)
        setattr(args, f"{side}_embed_dim", dim)
    args.dropout = args.attention_dropout = args.activation_dropout = 0.0
    args.warmup_updates = WARMUP_UPDATES
    apply_placement(args, sides=sides)
    default_warmup(args, sides)
    return args


# Passes


def total_loss(logits: Tensor, labels: Tensor, pad: int) -> Tensor:
    """The cross-entropy in nats, summed over the positions that have a label."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=pad, reduction="sum"
    )


def mean_loss(model: Any, batch: Batch, pad: int) -> Tensor:
    """The cross-entropy of a full model in nats a target token."""
    logits, _ = model(batch.source, None, batch.previous)
    return total_loss(logits, batch.target, pad) / batch.target.ne(pad).sum()


def layer_gradients(layers: Sequence[Any], loss: Tensor) -> list[float]:
    """The Frobenius norm of the gradient of ``loss`` by W^2, ``fc2`` in fairseq, of each layer."""
    gradients = torch.autograd.grad(loss, [layer.fc2.weight for layer in layers])
    return [float(torch.linalg.matrix_norm(gradient)) for gradient in gradients]


def watch_sums(stack: Any) -> dict[str, list[Tensor]]:
    """Collect, in the next forward, what the norm on the sum of each branch gets, by branch.

    A list has an entry for each layer that has such a norm.
    """
    watched: dict[str, list[Tensor]] = {}

    def keep(branch: str, norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        watched.setdefault(branch, []).append(inputs[0].detach())

    for layer in stack.layers.children():
        place = layer.placement.place
        for branch in place.branches:
            site = branch_sites(place.side, branch, (SUM,))[SUM]
            if layer.positions.get(site.attribute) == SUM:
                norm = getattr(layer, site.attribute)
                norm.register_forward_pre_hook(partial(keep, branch), prepend=True)
    return watched


def squared_lengths(xs: Sequence[Tensor], real: Tensor, dim: int) -> Tensor:
    """|x|^2 / d at the n real positions, (len(xs), n).

    A layer may give more than its output, which comes first. xs: (T, B, C or more); real: (T, B).
    """
    return torch.stack([x.detach()[..., :dim][real].square().mean(dim=-1) for x in xs])


class StackPass(NamedTuple):
    """What a pass through the simplified setting shows at the n real positions of its batch.

    Attributes:
        outputs: |x|^2 / d of the embeddings and of the output of each layer, (L + 1, n).
        sums: by branch, |x|^2 / d of what the norm on its sum gets, (L, n); only where every layer
            has such a norm.
        gradients: Frobenius norm of the gradient of the mean loss by W^2 of each layer, L numbers.
    """

    outputs: Tensor
    sums: Mapping[str, Tensor]
    gradients: list[float]


@functools.cache
def stack_pass(
    placement: str, norm_type: str, layers: int, dim: int, batches: Batches, seed: int
) -> StackPass:
    """One forward and backward pass through the simplified setting, looked at by layer."""
    setting = simplified(placement, norm_type, layers, dim, batches, seed)
    stack, pad = setting.stack, batches.source_words.pad()
    stack.requires_grad_(False)
    for layer in stack.layers.children():
        layer.fc2.requires_grad_(True)
    real = setting.labels.ne(pad)
    watched = watch_sums(stack)
    output = stack(setting.tokens, None, return_all_hiddens=True)
    loss = total_loss(setting.logits(output), setting.labels, pad) / real.sum()
    return StackPass(
        squared_lengths(output["encoder_states"], real, dim),
        {
            branch: squared_lengths(xs, real, dim)
            for branch, xs in watched.items()
            if len(xs) == layers
        },
        layer_gradients(list(stack.layers.children()), loss),
    )


class Activations(NamedTuple):
    """What a norm of the encoder sees at the real positions of a batch.

    Attributes:
        site: its path in the model.
        x: its input, (n, C), in float64.
        g: the gradient of the mean loss by its output, (n, C), in float64.
    """

    site: str
    x: Tensor
    g: Tensor


def encoder_activations(model: Any, batches: Batches, seed: int) -> list[Activations]:
    """Of each norm of the encoder, from below, in one pass over the batch of ``seed``."""
    norms = {
        f"encoder.{path}": module
        for path, module in model.encoder.named_modules()
        if isinstance(module, Norm)
    }
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def keep(path: str, norm: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        inputs[path], outputs[path] = given[0].detach(), output

    handles = [norm.register_forward_hook(partial(keep, path)) for path, norm in norms.items()]
    batch = batches.draw(seed)
    try:
        loss = mean_loss(model, batch, batches.target_words.pad())
    finally:
        for handle in handles:
            handle.remove()
    if not norms:
        return []
    gradients = torch.autograd.grad(loss, [outputs[path] for path in norms])
    real = batch.source.ne(batches.source_words.pad()).t()
    return [
        Activations(path, real_rows(inputs[path], real).double(), real_rows(g, real).double())
        for path, g in zip(norms, gradients)
    ]
