"""``replace_norms`` in the text models of transformers: small ones, with random weights."""

from __future__ import annotations

import copy
import inspect
import tempfile
import traceback
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch
from forked import ROOT

from norm_plugin.norms import Norm, build_norm, load_replaced, replace_norms

MOST_PARAMETERS = 30_000_000
SMALL = {
    32: "hidden_size d_model n_embd dim embed_dim embedding_size emb_dim word_embed_proj_dim",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
    "num_encoder_layers num_decoder_layers num_key_value_heads num_experts_per_tok",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
    "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads "
    "num_experts n_routed_experts num_local_experts",
    8: "head_dim d_kv d_head rotary_dim",
    16: "moe_intermediate_size shared_expert_intermediate_size",
    48: "intermediate_size d_ff d_inner ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim "
    "hidden_dim ffn_hidden_size",
    64: "n_positions max_position_embeddings",
    100: "vocab_size",
    0: "pad_token_id",
}
"""Small values of the attributes of a configuration; a model gets those that it has."""
CHANGES = (
    {},
    {"head_dim": None, "rotary_dim": None},
    {"head_dim": None, "rotary_dim": None, "num_key_value_heads": 4},
    {"num_hidden_layers": 4},
    {"num_hidden_layers": 4, "head_dim": None},
    {"num_hidden_layers": 8, "head_dim": None},
    {"num_hidden_layers": None},
)
"""Changes of these, tried in turn until a model trains; None leaves an attribute as it is."""
OTHER_INPUTS = {"pixel_values", "pixel_values_videos", "input_features", "input_values", "bbox"}
ITSELF = "itself"
ON_META = "itself, on the meta device before its weights are loaded"
SUBCLASS = "itself, in from_pretrained of a subclass"
SAVED = "seednorm, by load_replaced"
INITIALIZED = "powernorm, in from_pretrained of a subclass"
NORMS = ("dyt", "batchnorm", "powernorm", "mabn", "regularized-batchnorm")
"""A norm of each family."""
DONE = "done"


class NoModelError(ValueError):
    """No small configuration of an architecture gives a model that trains on tokens alone."""


def architectures():
    """Return the names of the architectures of transformers that take tokens and nothing else."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    names = []
    for name, config in CONFIG_MAPPING.items():
        try:
            model = MODEL_MAPPING[config]
            forward = (model[0] if isinstance(model, tuple) else model).forward
        except (KeyError, ImportError, ValueError):  # no model, or one that needs another library
            continue
        taken = set(inspect.signature(forward).parameters)
        if "input_ids" in taken and not taken & OTHER_INPUTS:
            names.append(name)
    return names


def new_model(name):
    """Return a small model of architecture ``name``, with random weights, in evaluation mode.

    Raises:
        NoModelError: no change of the small configuration gives one that trains on tokens alone.
    """
    errors = []
    for change in CHANGES:
        try:
            model = _build(name, change).eval()
            _gradients(copy.deepcopy(model))
        except Exception as error:  # noqa: BLE001 -- an architecture raises what it likes
            errors.append(_one_line(error))
        else:
            return model
    raise NoModelError(errors[0])


def _build(name, change):
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    default = config_class()
    values = {key: value for value, keys in SMALL.items() for key in keys.split()} | change
    given = {key: value for key, value in values.items() if value is not None}
    config = config_class(**{key: given[key] for key in given if hasattr(default, key)})
    with torch.device("meta"):
        size = sum(each.numel() for each in AutoModel.from_config(config).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"it has {size} parameters in a small configuration")
    torch.manual_seed(1)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        for each in model.parameters():
            if each.dim() == 1:  # gains and offsets, which begin as equals
                each.add_(torch.randn_like(each), alpha=0.1)
    return model


def new_batch(model):
    """Return tokens (3, 12) and a mask with padding at the end of one sequence."""
    tokens = torch.randint(5, 90, (3, 12), generator=torch.Generator().manual_seed(3))
    mask = torch.ones(3, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    batch = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": tokens}
    taken = inspect.signature(model.forward).parameters
    return {name: value for name, value in batch.items() if name in taken}


def try_model(stock, norms=NORMS):
    """Return the outcomes of the trials with copies of ``stock``: its own norms, and ``norms``."""
    return {
        ITSELF: _outcome(partial(_compare, stock), copy.deepcopy(stock)),
        ON_META: _outcome(_compare_loaded_from_meta, copy.deepcopy(stock)),
        SUBCLASS: _outcome(_compare_subclass, copy.deepcopy(stock)),
        SAVED: _outcome(_compare_saved, copy.deepcopy(stock)),
        INITIALIZED: _outcome(_check_initialized, copy.deepcopy(stock)),
        **{name: _outcome(partial(_train, name), copy.deepcopy(stock)) for name in norms},
    }


def _outcome(trial, model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a norm shows a causal model its future
        try:
            trial(model)
        except Exception as error:  # noqa: BLE001 -- an outcome that the table counts
            refused = "refused" if _is_refusal(error) else "failed"
            return f"{refused}: {_one_line(error)}"
    return DONE


def _is_refusal(error):
    """Return whether the plugin raised the error, in replace_norms or in the first forward."""
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    return isinstance(error, ValueError) and raised_in.is_relative_to(ROOT / "norm_plugin")


def _one_line(error):
    name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{name}{' '.join(str(error).split())}"[:400]


def _compare(stock, model):
    """Raise AssertionError unless ``model`` computes the same with its norms replaced by equals."""
    _replace_by_equals(model, _norms_by_kind(model))
    _check_equal(stock, model)


def _compare_loaded_from_meta(stock):
    """Raise AssertionError unless norms replaced by equals before there are weights are equal."""
    with torch.device("meta"):
        model = type(stock)(copy.deepcopy(stock.config)).eval()
    _replace_by_equals(model, _norms_by_kind(stock))
    model.to_empty(device="cpu")
    for norm in model.modules():
        if isinstance(norm, Norm):
            norm.reset_parameters()  # an offset that the old norm did not have
    known = dict(stock.named_parameters(remove_duplicate=False)) | dict(stock.named_buffers())
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in known:
                tensor.copy_(known[name])
    _check_equal(stock, model)


def _compare_subclass(stock):
    """Raise AssertionError unless norms replaced by equals inside ``from_pretrained`` are equal."""
    kinds = _norms_by_kind(stock)
    _check_equal(stock, _from_pretrained(stock, partial(_replace_by_equals, kinds=kinds)))


def _compare_saved(stock):
    """Raise AssertionError unless ``load_replaced`` loads a model as it was saved."""
    model = copy.deepcopy(stock)
    replace_norms(model, "seednorm", mask=None)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        _check_equal(model, load_replaced(type(stock), folder).eval())


def _check_initialized(stock):
    """Raise AssertionError unless a subclass gets what the checkpoint lacks from its new norms."""
    model = _from_pretrained(stock, partial(replace_norms, name="powernorm", mask=None))
    known = stock.state_dict()
    for path, norm in model.named_modules():
        if isinstance(norm, Norm):
            new = build_norm("powernorm", norm.dim, **norm.built_with).state_dict()
            for name, value in norm.state_dict().items():
                expected = known.get(f"{path}.{name}", new[name])
                torch.testing.assert_close(value, expected, rtol=0, atol=0, check_dtype=False)


def _from_pretrained(stock, replace):
    """Return what ``from_pretrained`` of a subclass whose ``__init__`` calls ``replace`` loads."""

    class Subclass(type(stock)):
        def __init__(self, config):
            super().__init__(config)
            replace(self)

    # by these, transformers finds what it converts in a checkpoint, such as weights of experts
    Subclass.__module__, Subclass.__name__ = type(stock).__module__, type(stock).__name__
    with tempfile.TemporaryDirectory() as folder:
        stock.save_pretrained(folder)
        return Subclass.from_pretrained(folder).eval()


def _replace_by_equals(model, kinds):
    for name, paths in kinds.items():
        replace_norms(model, name, mask=None, only=paths)


def _check_equal(stock, model):
    batch = new_batch(stock)
    outputs = []
    with torch.no_grad():
        for each in (stock, model):
            _seed()
            outputs.append(list(_tensors(each(**batch))))
    for expected, actual in zip(*outputs):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def _norms_by_kind(model):
    """Return the paths of the norms that are layernorm, and of those that are rmsnorm."""
    kinds = {}
    for replaced in replace_norms(copy.deepcopy(model), "rmsnorm", mask=None):
        old = model.get_submodule(replaced.path)
        x = torch.randn(2, 3, replaced.norm.dim)
        with torch.no_grad():
            is_shifted = torch.allclose(old(x), old(x + 1), atol=1e-3)
        kinds.setdefault("layernorm" if is_shifted else "rmsnorm", []).append(replaced.path)
    return kinds


def _train(name, model):
    """Raise an error unless ``model`` trains with norm ``name``, also with recomputed forwards."""
    stacks = [model]
    if "decoder_input_ids" in new_batch(model):
        stacks = [model.get_encoder(), model.get_decoder()]  # each has its own mask
    for stack in stacks:
        replace_norms(stack, name)
    models = [model]
    # some models claim it and have no layer that does it
    layers = any(hasattr(module, "gradient_checkpointing") for module in model.modules())
    if model.supports_gradient_checkpointing and layers:
        models.append(copy.deepcopy(model))
        models[1].gradient_checkpointing_enable({"use_reentrant": False})
    gradients = [_gradients(each) for each in models]
    for wanted, actual in zip(gradients[0], gradients[-1]):
        assert wanted.isfinite().all()
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)


def _gradients(model):
    _seed()
    outputs = [each for each in _tensors(model.train()(**new_batch(model))) if each.requires_grad]
    torch.stack([output.square().mean() for output in outputs]).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _seed():
    """Seed what models draw from: torch for dropout, numpy for layers that are left out."""
    torch.manual_seed(5)
    np.random.seed(5)


def _tensors(output):
    """Yield the floating-point tensors of an output of a model."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, (dict, list, tuple)):
        for value in output.values() if isinstance(output, dict) else output:
            yield from _tensors(value)
