"""configs/: what hydra composes of them, as flags and under fairseq's schema.

The numbers of the papers' recipes are compared in ``papers/settings.yaml``.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import partial

import pytest
import torch
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore

import norm_plugin.models  # noqa: F401  registers the architectures
from fake_runs import spec_of
from norm_lab.config.checks import check_number_averaged
from norm_lab.config.configuration import main, read_configuration
from norm_lab.config.experiments import find_experiment
from norm_lab.paths import CONFIGS
from norm_lab.run.flags import averaging_flags, training_flags
from norm_plugin.io.command_line import CommandError, run_command
from norm_plugin.norms import norm_spec

PRIMARY = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
TRANSLATION = [n for n in PRIMARY if read_configuration(n)["task"]["_name"] == "translation"]
CHOICES = [
    ("iwslt14_de_en", "recipe=adanorm"),
    ("iwslt14_de_en", "recipe=powernorm"),
    ("iwslt15_en_vi", "recipe=adanorm"),
    ("wmt14_en_de", "recipe=adanorm"),
    ("wmt14_en_de", "recipe=powernorm"),
]


def error_of(command, argv, capsys):
    """The one line that a command prints when it fails."""
    with pytest.raises(SystemExit) as stopped:
        run_command(partial(command, argv))
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert stopped.value.code == 2 and printed.out == "" and line.startswith("error: ")
    return line


def parsed(name, *overrides):
    """What fairseq-train understands of the flags of a recipe."""
    flags = training_flags(read_configuration(name, overrides))
    return options.parse_args_and_arch(options.get_training_parser(), ["DATA", *flags])


def schedule_of(args):
    """The learning-rate schedule of a training."""
    cfg = convert_namespace_to_omegaconf(args)
    adam = build_optimizer(cfg.optimizer, [torch.nn.Parameter(torch.zeros(1))])
    return build_lr_scheduler(cfg.lr_scheduler, adam)


def rates_by_epoch(args, epochs):
    schedule = schedule_of(args)
    schedule.step_begin_epoch(1)
    return [schedule.step_update(0), *map(schedule.step_begin_epoch, range(2, epochs + 1))]


def test_pre_norm_without_warmup_on_wmt14():
    """Xiong et al. 2020, section 4.1: 7e-4, from the 6th epoch with the inverse square root."""
    args = parsed("wmt14_en_de", "recipe=xiong")
    falling = [7e-4 * (5 / epoch) ** 0.5 for epoch in range(6, 21)]
    assert rates_by_epoch(args, 20) == pytest.approx([7e-4] * 5 + falling, rel=1e-3)  # rounded


def test_the_released_script_of_powernorm_beside_its_paper():
    """train-iwslt14.sh has dropouts of 0.3, 0.1 and 0.1, and averages 5 checkpoints."""
    paper, released = (
        training_flags(read_configuration("iwslt14_de_en", [f"recipe={recipe}"]))
        for recipe in ("powernorm", "powernorm_released")
    )
    words = {"--dropout", "--attention-dropout", "--activation-dropout", "--keep-last-epochs"}
    differing = {paper[i - 1] for i, word in enumerate(paper) if word != released[i]}
    assert differing == words
    args = parsed("iwslt14_de_en", "recipe=powernorm_released")
    assert (args.dropout, args.attention_dropout, args.activation_dropout) == (0.3, 0.1, 0.1)
    config = read_configuration("iwslt14_de_en", ["recipe=powernorm_released"])
    assert averaging_flags(config) == ["--last-epochs", "5"]


@pytest.mark.parametrize(
    ("recipe", "merges"),
    [(None, 32000), ("adanorm", 32000), ("powernorm", 37000), ("xiong", 37000)],
)
def test_wmt14_has_the_vocabulary_of_the_recipe(recipe, merges):
    experiment = find_experiment("wmt14", recipe=recipe)
    assert (experiment.merges, experiment.recipe) == (merges, recipe or "adanorm")
    chosen = [f"recipe={recipe}"] if recipe else []
    assert spec_of("wmt14", *chosen).data.name == f"wmt14-{merges}"


@pytest.mark.parametrize("name", ["ptb", "wikitext103"])
def test_the_plain_language_models_are_those_of_the_powernorm_paper_but_for_the_attention(name):
    tensorized, plain = (read_configuration(each) for each in (name, f"{name}_plain"))
    sizes = ("decoder_embed_dim", "decoder_ffn_embed_dim", "decoder_layers", "dropout")
    for key in (*sizes, "norm_placement"):
        assert plain["model"][key] == tensorized["model"][key]
    assert {**plain, "model": None} == {**tensorized, "model": None}
    args = parsed(name)
    schedule = schedule_of(args)
    assert schedule.step_update(4000) == pytest.approx(0.00025)
    assert schedule.step_update(3999 + args.lr_period_updates) == pytest.approx(0, abs=1e-9)


def test_the_plain_character_model_is_that_of_the_adanorm_paper_but_for_the_memory():
    args = parsed("enwik8_plain", "norm=adanorm")
    assert (args.decoder_ffn_embed_dim, args.decoder_normalize_before) == (2048, False)
    assert (args.decoder_layers, args.decoder_embed_dim, args.batch_size) == (12, 512, 22)
    assert (args.norm_scale, args.norm_init) == (1.0, "kaiming")
    assert (args.dropout, args.activation_dropout, args.attention_dropout) == (0.1, 0.1, 0.0)


def test_a_norm_and_a_placement_are_words_for_settings_of_the_model():
    words = ["norm=seednorm", "placement=admin", "model.norm_eps=0.1"]
    model = read_configuration("rt", words)["model"]  # a file without a placement
    assert (model["norm_type"], model["norm_placement"]) == ("seednorm", "admin")
    assert model["norm_eps"] == 0.1
    options = [f"norm_{option.name}" for option in norm_spec("seednorm").options]
    after = list(model).index("norm_type") + 1
    assert list(model)[after : after + len(options)] == options  # as a run before has them
    with pytest.raises(CommandError, match="unknown placement 'seednorm'; did you mean"):
        read_configuration("rt", ["placement=seednorm"])


@pytest.mark.parametrize(
    ("name", "scale"), [("iwslt15_en_vi", 1.0), ("iwslt14_de_en", None), ("wmt14_en_de", None)]
)
def test_adanorm_has_its_constant_of_the_corpus(name, scale):
    adanorm, layernorm = parsed(name, "norm=adanorm"), parsed(name, "norm=layernorm")
    assert getattr(adanorm, "norm_scale", None) == scale  # None: the norm's default, 2
    assert getattr(layernorm, "norm_scale", None) is None


def test_the_small_experiment_keeps_its_flags():
    """studies/multi30k_cpu was measured with these."""
    flags = training_flags(read_configuration("multi30k_cpu"))
    text = """--user-dir norm_plugin --seed 1 --cpu --log-interval 50 --task translation
        --source-lang en --target-lang de --arch norm_transformer_multi30k_tiny
        --norm-type layernorm --norm-placement pre --share-all-embeddings --dropout 0.1
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam
        --adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt --warmup-updates 1000
        --warmup-init-lr 1e-07 --lr 0.005 --clip-norm 0.0 --max-epoch 12 --max-tokens 4096
        --update-epoch-batch-itr True --num-workers 0 --save-dir checkpoints --keep-last-epochs 4"""
    assert sorted(flags) == sorted(shlex.split(text))


@pytest.mark.parametrize("name", PRIMARY)
def test_every_experiment_composes_under_the_schema_of_fairseq(name):
    # fairseq-hydra-train stores its schema under the name of the primary file.
    ConfigStore.instance().store(name=name, node=FairseqConfig)
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.1"):
            composed = compose(name, ["model.norm_type=powernorm", "task.data=DATA"])
        assert composed.model.norm_type == "powernorm"
        assert name not in TRANSLATION or composed.generation.beam in (4, 5)
    finally:
        del ConfigStore.instance().repo[f"{name}.yaml"]


def test_new_batches_each_epoch_as_a_resumed_run_makes_them():
    for name in PRIMARY:
        assert "True" in parsed(name).update_epoch_batch_itr


@pytest.mark.parametrize(
    ("name", "recipe"),
    [*CHOICES, *((name, None) for name in TRANSLATION if name not in dict(CHOICES))],
)
def test_a_smoke_run_is_small_and_ends_after_sixty_updates(name, recipe):
    overrides = ["size=smoke", *([recipe] if recipe else [])]
    args = parsed(name, *overrides)
    assert (args.max_update, args.update_freq, args.encoder_embed_dim) == (60, [1], 64)
    assert averaging_flags(read_configuration(name, overrides)) == ["--last-updates", "2"]


@pytest.mark.parametrize("name", ["rt", "sst5"])
def test_a_smoke_run_of_a_classifier_is_small(name):
    args = parsed(name, "size=smoke_classifier")
    assert (args.max_update, args.encoder_embed_dim) == (60, 32)


def test_nanogpts_recipe_for_a_cpu():
    args = parsed("tinyshakespeare", "recipe=nanogpt")
    sizes = (args.decoder_layers, args.decoder_embed_dim, args.decoder_attention_heads)
    assert (*sizes, args.dropout, args.activation_fn) == (4, 128, 4, 0.0, "gelu")
    assert (args.tokens_per_sample, args.batch_size, args.max_update) == (64, 12, 2000)
    assert (args.lr, args.min_lr, args.warmup_updates, args.clip_norm) == ([1e-3], 1e-4, 100, 1.0)
    assert (args.adam_betas, args.weight_decay) == ("(0.9, 0.99)", 0.1)
    assert (args.norm_init, args.no_scale_embedding) == ("nanogpt", True)
    assert args.optimizer == "adam_matrix_decay"


def test_the_fair_recipe_for_characters_is_nanogpts_with_more_updates():
    nanogpt, fair = (vars(parsed("tinyshakespeare", f"recipe={r}")) for r in ("nanogpt", "fair"))
    assert {name for name in fair if fair[name] != nanogpt[name]} == {"max_update"}
    assert fair["max_update"] == 5000


def test_the_short_recipe_for_characters_changes_the_number_of_updates_alone():
    long, short = (vars(parsed("tinyshakespeare", *argv)) for argv in ([], ["recipe=short"]))
    differing = {name for name in long if long[name] != short[name]}
    assert differing == {"max_update", "save_interval_updates"}
    assert (long["decoder_layers"], long["max_update"], short["max_update"]) == (6, 7000, 2000)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("enwik8", ["size=smoke_xl"]),
        ("enwik8_plain", ["size=smoke_lm"]),
        ("ptb", ["size=smoke_tensorized"]),
        ("ptb_plain", ["size=smoke_lm"]),
        ("tinyshakespeare", ["size=smoke_lm"]),
        ("tinyshakespeare", ["recipe=xl", "size=smoke_xl"]),
        ("tinyshakespeare", ["recipe=tensorized", "size=smoke_tensorized"]),
        ("wikitext2", ["size=smoke_lm"]),
        ("wikitext103", ["size=smoke_tensorized"]),
        ("wikitext103_plain", ["size=smoke_lm"]),
    ],
)
def test_a_smoke_run_of_a_language_model_is_small(name, choices):
    args = parsed(name, *choices)
    assert (args.max_update, args.decoder_layers, args.decoder_embed_dim) == (60, 2, 64)
    assert not args.fp16  # it may run on a CPU


def test_as_many_checkpoints_are_averaged_as_the_user_keeps():
    assert averaging_flags({"checkpoint": {"no_epoch_checkpoints": True}}) == []
    checkpoint = {"keep_last_epochs": 3, "keep_interval_updates": -1}
    assert averaging_flags({"checkpoint": checkpoint}) == ["--last-epochs", "3"]
    checkpoint["keep_interval_updates"] = 4
    assert averaging_flags({"checkpoint": checkpoint}) == ["--last-updates", "4"]
    with pytest.raises(CommandError, match=r"set checkpoint\.keep_last_epochs"):
        averaging_flags({"checkpoint": {}})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["iwslt14"], "there is no iwslt14 in"),
        (["iwslt14_de_en", "norm=laynorm"], "unknown norm 'laynorm'; did you mean layernorm"),
        (["iwslt15_en_vi", "recipe=powernorm"], "Available options in 'recipe/iwslt15_en_vi'"),
        (["toy", "model.dorpout=0.3"], "Could not override 'model.dorpout'"),
    ],
)
def test_a_wrong_choice_is_one_line(argv, message, capsys):
    line = error_of(main, argv, capsys)
    assert message in line and "provider=" not in line


@pytest.mark.parametrize(
    ("norm", "argv", "message"),
    [
        ("layernorm", ["--norm-groups", "4"], "--norm-groups is an option of groupnorm"),
        ("groupnorm", ["--norm-groups", "3"], "encoder-self: groups is 3; it must divide 128"),
        ("layernorm", ["--norm-eps", "x"], "argument --norm-eps: invalid float value: 'x'"),
        ("layernorm", ["--foo", "3"], "fairseq-train: unrecognized arguments: --foo 3"),
        (
            "layernorm",
            ["--norm-placement", "post", "--encoder-normalize-before"],
            "contradicts post-norm",
        ),
        ("layernorm", ["--lr-scheduler", "none"], "argument --lr-scheduler: invalid choice"),
        ("layernorm", ["--warmup-updates", "0"], "inverse_sqrt divides by --warmup-updates"),
        ("layernorm", ["--max-epoch", "2"], "saves 2 checkpoints, but 3 are averaged"),
        (
            "layernorm",
            ["--user-dir", "x"],
            "--user-dir cannot come after the --: give --user-dir DIR",
        ),
        ("layernorm", ["--seed=2"], "--seed cannot come after the --: give seed=N"),
        ("layernorm", ["-h"], "-h cannot come after the --"),
    ],
)
def test_a_wrong_flag_of_the_training_is_refused(norm, argv, message):
    with pytest.raises(CommandError, match=re.escape(message)):
        spec_of("toy", f"norm={norm}", "--", *argv)


def test_too_few_updates_for_what_is_averaged():
    def config(kept, **optimization):
        checkpoint = {"save_interval_updates": 13, "keep_interval_updates": kept}
        return {"optimization": optimization, "checkpoint": checkpoint}

    check_number_averaged(config(4, max_update=60))
    with pytest.raises(CommandError, match="saves 4 .*but 5 .* by --keep-interval-updates"):
        check_number_averaged(config(5, max_update=60))
    check_number_averaged(config(10))  # it ends by itself


OWN_NORM = '''
from norm_plugin.norms import Norm, register_norm

@register_norm("recipes-own", formula="x", paper="none")
class Own(Norm):
    """A norm of the user's.

    Options:
        recipes_slope: of which nobody else knows
    """

    def __init__(self, dim: int, *, recipes_slope: float = 0.5) -> None:
        super().__init__(dim)

    def normalize(self, x, valid):
        return x
'''


@pytest.fixture
def own(tmp_path, monkeypatch, own_registry):
    """A --user-dir that registers a norm, forgotten after the test."""
    folder = tmp_path / "recipes_own"
    folder.mkdir()
    (folder / "__init__.py").write_text(OWN_NORM)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    sys.modules.pop(folder.name, None)


def test_a_norm_of_the_users_own_needs_no_file(own):
    argv = ["toy", "norm=recipes-own", "--user-dir", str(own), "--"]
    spec = spec_of(*argv, "--norm-recipes-slope", "0.7")
    assert spec.settings["model"]["norm_type"] == "recipes-own"
    assert spec.settings["common"]["user_dir"] == str(own)
    with pytest.raises(CommandError, match="--norm-k is an option of adanorm"):
        spec_of(*argv, "--norm-k", "0.7")


def test_the_flags_name_the_folder_of_the_users_own_norm(own, capsys, monkeypatch):
    monkeypatch.chdir(own.parent)
    assert main(["toy", "norm=recipes-own", "--user-dir", own.name]) == 0
    printed = capsys.readouterr().out.split("\n")
    assert printed[printed.index("--norm-type") + 1] == "recipes-own"
    assert printed[printed.index("--user-dir") + 1] == str(own)


@pytest.mark.parametrize(
    "command", [(main, ["toy"]), (lambda argv: spec_of(*argv), ["rt"])], ids=["flags", "run"]
)
def test_a_plugin_that_cannot_be_imported_is_one_line(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    broken = tmp_path / f"broken_{command[1][0]}"  # fairseq imports a folder once
    unreadable = tmp_path / f"unreadable_{command[1][0]}"
    for folder in (tmp_path / "json", broken, unreadable):
        folder.mkdir()
    (broken / "__init__.py").write_text("import norm_plugin.nowhere")
    (unreadable / "__init__.py").write_text("def (")
    for folder, message in (
        (tmp_path / "json", "(json) is not globally unique. Please rename the directory"),
        (broken, "cannot be imported: ModuleNotFoundError: No module named 'norm_plugin.nowhere'"),
        (unreadable, "cannot be imported: SyntaxError: invalid syntax"),
    ):
        main_of, argv = command
        line = error_of(main_of, [*argv, "--user-dir", str(folder)], capsys)
        assert message in line and str(folder) in line


def test_flags_for_a_shell_are_read_by_bash(capsys):
    argv = ["toy", 'optimizer.adam_betas="(0.8, 0.9)"']
    assert main([*argv, "--shell"]) == 0
    code = f"printf '%s\\n' {capsys.readouterr().out}"
    result = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    flags = result.stdout.splitlines()
    assert flags == training_flags(read_configuration(argv[0], argv[1:]))
    assert flags[flags.index("--adam-betas") + 1] == "(0.8, 0.9)"
    assert main(["toy", "--averaging", "--shell"]) == 0
    assert capsys.readouterr().out == "--last-epochs 3\n"


def test_a_corpus_that_norm_data_dir_lacks_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("NORM_DATA_DIR", str(tmp_path))
    assert "raw" not in spec_of("multi30k").preparation.options
    (tmp_path / "multi30k").mkdir()
    preparation = spec_of("multi30k").preparation
    assert preparation.options["raw"] == str(tmp_path / "multi30k")
