"""Flags and YAML keys: both reach the norms, and a wrong one is an error that helps."""

from __future__ import annotations

import argparse
import dataclasses

import pytest
import torch
from fairseq import models, options, utils
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer.transformer_legacy import base_architecture
from omegaconf import OmegaConf, open_dict

from norm_plugin.models import stacks
from norm_plugin.models.config import config_class
from norm_plugin.models.norm_model import NormModel
from norm_plugin.models.settle import settle
from norm_plugin.models.translation import NormTransformerModel
from norm_plugin.norms import Norm, declared_options, norm_spec, register_norm
from norm_plugin.norms.base import registry as registry
from norm_plugin.norms.base.registry import is_reserved
from norm_plugin.placements import PLACEMENTS


def encoder_norm(model):
    return model.encoder.layers[0].self_attn_layer_norm


def test_flags_and_yaml_keys_reach_the_norm_in_their_types(build, build_yaml):
    flags = ("--norm-type", "powernorm", "--norm-alpha-fwd", "0.99", "--norm-eps", "1e-3")
    # YAML 1.1 reads 1e-3 as a string
    yaml = {"norm_type": "powernorm", "norm_eps": "1e-3", "norm_alpha_fwd": 0.99}
    for norm in map(encoder_norm, (build(*flags), build_yaml(**yaml))):
        assert (norm.alpha_fwd, norm.alpha_bwd, norm.eps) == (0.99, 0.9, 1e-3)


@pytest.mark.parametrize(("word", "sync"), [("on", True), (True, True), (False, False)])
def test_a_switch_may_come_as_a_boolean_of_yaml(word, sync, build_yaml):
    # YAML 1.1 reads a bare `on` as true
    assert encoder_norm(build_yaml(norm_type="powernorm", norm_sync=word)).sync is sync


def test_an_option_goes_to_each_chosen_norm_that_has_it(build):
    model = build("--norm-type", "adanorm", "--norm-type-decoder", "rmsnorm", "--norm-eps", "1e-3")
    assert encoder_norm(model).eps == 1e-3
    assert model.decoder.layers[0].final_layer_norm.eps == 1e-3


@pytest.mark.parametrize("settings", [{"norm_type": "powernorm"}, {"norm_placement": "pre"}])
def test_a_model_of_fairseq_is_not_given_norms(settings, task):
    cfg = OmegaConf.create({"_name": "transformer", "norm_init": None, **settings})
    ignored = f"ignores {next(iter(settings))}; choose a model of this plugin, .* norm_transformer"
    with pytest.raises(ValueError, match=ignored):
        models.build_model(cfg, task)


def test_a_model_of_ones_own_may_have_such_settings(monkeypatch, task):
    class Own:
        build_model = staticmethod(lambda cfg, task: cfg.norm_type)

    monkeypatch.setitem(ARCH_MODEL_REGISTRY, "own", Own)
    cfg = OmegaConf.create({"_name": "own", "norm_type": "powernorm"})
    assert models.build_model(cfg, task) == "powernorm"


def test_no_option_can_have_the_name_of_a_flag_of_the_models():
    flags = {field.name for field in dataclasses.fields(config_class())}
    names = {flag.removeprefix("norm_") for flag in flags if flag.startswith("norm_")}
    assert {"type", "init", "placement", "type_encoder_self"} <= names
    assert not any(map(is_reserved, declared_options()))
    assert all(map(is_reserved, names - set(declared_options())))


def test_an_unknown_norm_names_the_right_ones(build, build_yaml, capsys):
    with pytest.raises(SystemExit):
        build("--norm-type", "powrnorm")
    assert "invalid choice: 'powrnorm'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="unknown norm 'powrnorm'; choose from .*powernorm"):
        build_yaml(norm_type_encoder_ffn="powrnorm")


def test_an_unknown_yaml_key_is_refused(build_yaml):
    for key, near in (
        ("norm_alpha_forward", "norm_alpha_fwd"),
        ("dropuot", "dropout"),
        ("norm_type_encoder_fnn", "norm_type_encoder_ffn"),
    ):
        message = f"unknown model key {key}; the nearest are (.*, )?{near}(,|$)"
        with pytest.raises(ValueError, match=message):
            build_yaml(norm_type="powernorm", **{key: 0.9})
    with pytest.raises(ValueError, match="unknown model key encoder_layrs; the nearest are"):
        build_yaml(encoder={"layrs": 3})


def test_nested_groups_of_fairseq_are_flat_keys(task, build_yaml):
    groups = {"encoder": {"_name": None, "layers": 3}, "quant_noise": {"pq_block_size": 4}}
    nested = build_yaml(norm_placement="pre", **groups)
    flat = build_yaml(norm_placement="pre", encoder_layers=3, quant_noise_pq_block_size=4)
    assert nested.cfg.plan == flat.cfg.plan and len(nested.encoder.layers) == 3
    assert nested.cfg.quant_noise.pq_block_size == flat.cfg.quant_noise.pq_block_size == 4


OURS = sorted(name for name, model in ARCH_MODEL_REGISTRY.items() if issubclass(model, NormModel))


def test_what_is_filled_in_is_taken_when_it_comes_back():
    """Settings of a checkpoint are taken, for every architecture, from few and from many flags."""
    for arch in OURS:
        layers = f"{ARCH_MODEL_REGISTRY[arch].sides[-1]}_layers"
        for given in ({}, {layers: 2, "norm_type": "powernorm", "norm_warmup_updates": 3}):
            cfg = OmegaConf.create({"model": {"_name": arch, **given}})
            OmegaConf.set_struct(cfg, True)
            for _ in range(3):
                with open_dict(cfg.model):
                    ARCH_CONFIG_REGISTRY[arch](cfg.model)
                cfg.model = OmegaConf.to_container(cfg.model)


def test_warmup_defaults_to_that_of_the_learning_rate(build, build_yaml):
    flags = ("--norm-type", "powernorm")
    assert encoder_norm(build(*flags, "--warmup-updates", "123")).warmup_updates == 123
    assert encoder_norm(build(*flags, "--norm-warmup-updates", "0")).warmup_updates == 0
    yaml = {"lr_scheduler": {"warmup_updates": 321}, "norm_type": "powernorm"}
    assert encoder_norm(build_yaml(**yaml)).warmup_updates == 321
    assert encoder_norm(build_yaml(**yaml, norm_warmup_updates=7)).warmup_updates == 7


def test_without_a_learning_rate_warmup_one_must_be_given(build, build_yaml):
    message = "give --norm-warmup-updates"
    with pytest.raises(ValueError, match=message):
        build("--norm-type", "powernorm", lr_scheduler="tri_stage")
    with pytest.raises(ValueError, match=message):
        build_yaml(norm_type="powernorm", lr_scheduler={})


def test_the_choices_are_stored_with_the_run(task):
    arch = "norm_transformer_multi30k_tiny"
    model = {"_name": arch, "norm_type": "powernorm", "norm_placement": "pre"}
    cfg = OmegaConf.create({"lr_scheduler": {"warmup_updates": 10}, "model": model})
    models.build_model(cfg.model, task)
    stored = OmegaConf.to_container(cfg.model, resolve=True)
    assert stored["norm_warmup_updates"] == 10
    assert stored["norm_type_encoder_final"] == "powernorm"
    assert stored["norm_type_decoder_cross"] == "layernorm"
    # and a model built from what was stored is the same one, without a scheduler to ask
    again = models.build_model(OmegaConf.create(stored), task)
    assert encoder_norm(again).warmup_updates == 10


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_placement_of_architectures(placement):
    """fairseq's architecture functions set one of their own, whatever was asked for."""
    for arch in OURS:
        named = arch.endswith(("_preln", "_postln"))
        if named and not arch.endswith(f"_{placement}ln"):
            continue
        args = argparse.Namespace(**({} if named else {"norm_placement": placement}))
        ARCH_CONFIG_REGISTRY[arch](args)
        assert args.norm_placement == placement, arch
        for side in ARCH_MODEL_REGISTRY[arch].sides:
            assert getattr(args, f"{side}_normalize_before") == (placement == "pre"), arch


REFUSED = """
--norm-type adanorm --norm-alpha-bwd 0.9
    --norm-alpha-bwd is an option of .*powernorm.*, but the chosen norms are adanorm
--norm-placement post --encoder-normalize-before
    encoder_normalize_before is True, which contradicts post-norm
--arch norm_transformer_multi30k_tiny_postln --decoder-normalize-before
    decoder_normalize_before is True, which contradicts
--arch norm_transformer_multi30k_tiny_postln --norm-placement pre
    placement pre of the encoder contradicts the arch
--arch norm_transformer_multi30k_tiny_postln --norm-placement-decoder pre
    placement pre of the decoder contradicts the
--arch norm_transformer_multi30k_tiny_preln --norm-placement post
    placement post of the encoder contradicts the arch
--norm-placement rezero --norm-type powernorm
    --norm-type powernorm: no site would have this norm
--norm-type-encoder rmsnorm --norm-placement-encoder rezero
    --norm-type-encoder rmsnorm: no site would have this norm
--norm-type dyt --norm-type-encoder rmsnorm --norm-type-decoder none
    --norm-type dyt: no site would have this norm
--norm-type-encoder-final rmsnorm --norm-placement post
    --norm-type-encoder-final rmsnorm: this model has no such site
--norm-type-embedding rmsnorm
    --norm-type-embedding rmsnorm: this model has no such site
--norm-type-query batchnorm
    --norm-type-query is 'batchnorm', which mixes positions
--norm-placement residual --no-decoder-final-norm
    residual computes .* at its final norm, but --no-decoder-final-norm is given: drop it
--norm-placement-decoder rezero --norm-init fixup
    fixup is undefined with placement rezero of the decoder: every branch and its weight
--norm-placement rezero-pre --norm-init fixup-released
    fixup-released is undefined with placement rezero-pre of the encoder: every branch
--norm-embedding fixnorm --adaptive-softmax-cutoff 10,20
    adaptive_softmax_cutoff is .*, but --norm-embedding fixnorm needs embeddings in one matrix
--norm-type batchnorm --norm-ghost-batch-tokens 0
    --norm-ghost-batch-tokens is 0; it must be 1 or more
--norm-ghost-batch-tokens 9
    none of the chosen norms, layernorm, has batch statistics
--norm-type batchnorm --norm-ghost-batch-tokens 9 --norm-sync on
    --norm-ghost-batch-tokens 9 contradicts --norm-sync on
--norm-record 0
    --norm-record is 0; it must be 1 or more
--norm-record-file f
    --norm-record-file f needs --norm-record EVERY
--norm-record 9 --norm-record-sites encoder-self,ffn
    --norm-record-sites ffn: unknown site; choose from all, decoder, decoder-cross
--norm-placement post --norm-record 9 --norm-record-sites encoder-final
    --norm-record-sites encoder-final: this model has no such site
"""
"""Flags, and what is said of them below."""
LINES = [line.strip() for line in REFUSED.strip().splitlines()]


@pytest.mark.parametrize(("flags", "message"), list(zip(LINES[::2], LINES[1::2])))
def test_flags_that_contradict_each_other_or_do_nothing_are_refused(flags, message, build):
    with pytest.raises(ValueError, match=message):
        build(*flags.split())


def test_a_norm_registered_later_has_its_flags(build, own_registry):
    build()  # with the flags of before

    @register_norm("late", formula="x * by", paper="a user's own")
    class Late(Norm):
        """Late.

        Options:
            by: the factor
            variant: any word, where other norms have choices
        """

        def __init__(self, dim: int, *, by: int = 1, variant: str = "") -> None:
            super().__init__(dim)
            self.by, self.variant = by, variant

        def normalize(self, x, valid):
            return x * self.by

    norm = encoder_norm(build("--norm-type", "late", "--norm-by", "3", "--norm-variant", "own"))
    assert norm.by == 3 and norm.variant == "own"


def test_layer_drop_with_synced_norms_on_two_workers_is_refused(build, monkeypatch):
    flags = ("--norm-type", "batchnorm", "--encoder-layerdrop", "0.5")
    build(*flags)
    monkeypatch.setattr(stacks, "worker_count", lambda: 2)
    with pytest.raises(ValueError, match=r"LayerDrop \(0.5\) .*: give --norm-sync off"):
        build(*flags)
    build(*flags, "--norm-sync", "off")
    build(*flags, "--norm-ghost-batch-tokens", "50")  # which switches the sums over workers off
    build(*flags[:2], "--decoder-layerdrop", "0.5")  # the decoder keeps layernorm


def test_an_architecture_completes_what_it_has_completed():
    """fairseq does so, on the command line and in build_model; N is known only the second time."""
    complete = ARCH_CONFIG_REGISTRY["norm_transformer_multi30k_tiny"]
    for placement in PLACEMENTS:
        settings = argparse.Namespace(norm_placement=placement)
        complete(settings)
        before = vars(settings).copy()
        complete(settings)
        assert vars(settings) == before and settings.encoder_layers == 4, placement


def test_settings_that_are_settled_give_the_same_plan(task):
    """fairseq has them completed when it reads the flags, and again when it builds the model."""
    flags = ["DATA", "--arch", "norm_transformer_multi30k_tiny", "--norm-type", "powernorm"]
    flags += ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4"]
    args = options.parse_args_and_arch(options.get_training_parser(), flags)
    assert args.norm_warmup_updates == 4
    args.warmup_updates = 8  # too late: the length is settled
    settings = argparse.Namespace(**vars(args), _name=args.arch)  # as fairseq hands them over
    model = models.build_model(settings, task)
    assert settle(args) == settle(vars(args)) == model.cfg.plan
    assert settle({**vars(args), "norm_type": "mabn"}) != model.cfg.plan


@pytest.mark.parametrize(
    "flags",
    [
        ("--norm-placement-encoder", "hybrid", "--norm-placement-decoder", "pre"),
        ("--norm-placement", "hybrid", "--norm-type-encoder", "rmsnorm"),
        ("--norm-type", "rmsnorm", "--norm-type-query", "layernorm"),
    ],
)
def test_the_settings_that_are_stored_give_the_same_plan(flags, task):
    """A checkpoint is loaded into the model that they describe."""
    arch = "norm_transformer_multi30k_tiny"
    args = options.parse_args_and_arch(
        options.get_training_parser(), ["DATA", "--arch", arch, *flags]
    )
    settings = argparse.Namespace(**vars(args), _name=arch)
    model = models.build_model(settings, task)
    assert settle(model.args) == model.cfg.plan


def test_a_model_that_no_command_line_configures_has_the_default_warmup(task):
    """Such as one that is built for inference: its settings have no learning rate."""
    args = argparse.Namespace(norm_type="powernorm", encoder_layers=1, decoder_layers=1)
    base_architecture(args)
    model = NormTransformerModel.build_model(args, task)
    default = {option.name: option.default for option in norm_spec("powernorm").options}
    assert encoder_norm(model).warmup_updates == default["warmup_updates"]


def test_a_model_has_its_settings_where_fairseqs_has_them(build):
    assert build("--norm-type", "rmsnorm").args.norm_type == "rmsnorm"


@pytest.mark.parametrize(("gpu", "xla"), [(True, False), (True, True), (False, False)])
def test_bf16_trains_on_a_gpu_unless_there_is_a_tpu(gpu, xla, monkeypatch):
    """fairseq-train takes ``--bf16`` for ``--tpu --bf16``."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(utils, "xm", object() if xla else None)
    parser = options.get_training_parser()
    argv = ["data", "--arch", "norm_transformer_lm_char", "--task", "language_modeling", "--bf16"]
    args = options.parse_args_and_arch(parser, argv)
    assert args.bf16 and args.tpu == (not gpu or xla)


@pytest.mark.parametrize(
    ("arch", "ours"),
    [("transformer", "norm_transformer"), ("transformer_lm_gpt", "norm_transformer_lm_gpt")],
)
def test_flags_of_norms_with_an_architecture_of_fairseq_end_in_one_line(arch, ours, capsys):
    parser = options.get_training_parser()
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(parser, ["data", "--arch", arch, "--norm-type", "rmsnorm"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: --arch {arch} is fairseq's and has no --norm-type; choose an architecture of "
        f"norm_plugin, such as {ours}\n"
    )
