"""A run: its stages in order and once, what its options come to, and dry runs."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest

from fake_runs import FakeRuns, composed, of_stage, spec_of, value
from norm_lab.config.spec import RUN_FILE, RunSpec
from norm_lab.engine.execution import check_direction, write_run
from norm_lab.engine.stages import data_key, evaluation_flags, run_stages
from norm_plugin.io.command_line import CommandError

STAGES = ["prepare", "train", "average", "generate", "score"]
DONE = "was done before"
STAMPED = 2  # stages; those of the data see for themselves


@pytest.mark.parametrize("name", ["iwslt15", "toy"])  # with a vocabulary for each side, and one
def test_all_stages_run_in_order_and_once(name, runs):
    first = runs.run(name, "norm=rmsnorm", "seed=2")
    assert first.returncode == 0, first.stderr
    shown = [line.rpartition(": ")[2] for line in first.stdout.splitlines()]
    assert [text for text in shown if text in STAGES] == STAGES
    assert len(list((runs.work / "results").rglob("rmsnorm-seed2.json"))) == 1
    calls = runs.take_calls()
    commands = [call[(call[1] == "norm_plugin" and 2) or 1] for call in calls[1:]]
    assert commands == ["fairseq_cli.train", "finish"]

    again = runs.run(name, "norm=rmsnorm", "seed=2")
    assert again.stdout.count(DONE) == STAMPED
    dry = runs.run(name, "norm=rmsnorm", "seed=2", "--dry-run", "--verbose")
    assert dry.stdout.count(DONE) == STAMPED and "fairseq_cli" not in dry.stdout
    assert runs.take_calls() == []


def test_a_changed_raw_corpus_is_prepared_again(runs, tmp_path):
    """The preparation itself compares its inputs with those from which the data was made."""
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "train.en").write_text("one\n")
    assert runs.run("toy", "--raw", str(raw)).returncode == 0
    runs.take_calls()
    assert runs.run("toy", "--raw", str(raw)).returncode == 0 and runs.take_calls() == []
    (raw / "train.en").write_text("three\n")
    assert runs.run("toy", "--raw", str(raw)).returncode == 0
    assert [call[0] for call in runs.take_calls()] == ["data-prep/toy.py"]


def test_a_changed_program_of_ones_own_corpus_prepares_it_again(tmp_path):
    program = tmp_path / "mine.py"
    program.write_text("print(1)\n")
    spec = spec_of("toy", "--work", tmp_path / "work")
    own = replace(spec, preparation=replace(spec.preparation, program=str(program)))
    before = data_key(own)
    program.write_text("print(2)\n")
    assert data_key(own) != before


def test_a_corpus_of_the_other_direction_is_refused(tmp_path):
    """It would be trained from en to xx, and evaluated from xx to en, with a score of about 0."""
    spec = spec_of("toy", "--work", tmp_path / "work")
    spec.data.mkdir(parents=True)
    for source, target in (("en", "xx"), ("xx", "en")):
        manifest = json.dumps({"source": source, "target": target})
        (spec.data / "manifest.json").write_text(manifest)
        if source == "en":
            check_direction(spec)
    with pytest.raises(CommandError, match="task.source_lang is en, but .* has the source xx"):
        check_direction(spec)


def test_the_spec_of_a_copied_or_damaged_run_is_refused(tmp_path):
    """``finish`` of a copy would write into the folder of the original."""
    spec = spec_of("toy", "--work", tmp_path / "work")
    write_run(spec)
    assert RunSpec.read(spec.folder) == spec
    copy = shutil.copytree(spec.folder, tmp_path / "copy")
    assert RunSpec.read(copy) == spec  # a sweep with another --work writes it anew
    with pytest.raises(CommandError, match=f"copy is a copy, or was moved.* {spec.folder}, where"):
        RunSpec.read_in_place(copy)
    content = json.loads((spec.folder / RUN_FILE).read_text())
    for change in ({"more": 1}, {"arm": []}):
        (spec.folder / RUN_FILE).write_text(json.dumps(content | change))
        with pytest.raises(CommandError, match="run.json is damaged or of another version"):
            RunSpec.read(spec.folder)
    (spec.folder / RUN_FILE).write_text("[]")
    with pytest.raises(CommandError, match="run.json is damaged or of another version"):
        RunSpec.read(spec.folder)


def last_lines(text):
    """The last two lines, without the time at their start."""
    return [line.split(maxsplit=1)[1] for line in text.splitlines()[-2:]]


def test_a_run_ends_with_its_scores_and_the_path_of_its_result(runs):
    """A finished run prints them again."""
    for _ in range(2):
        result = runs.run("toy", "seed=2")
        (path,) = runs.work.glob("results/toy/*.json")
        score = json.loads(path.read_text())["scores"]["sacrebleu"]
        assert score["score"] == 37  # of the fake for seed 2
        line = f"37.00  {score['label']} (nrefs:1|case:mixed)"
        assert last_lines(result.stdout) == [line, f"result: {path}"]


def test_a_run_whose_data_cannot_be_had_leaves_no_record(runs):
    """A mistyped --raw, for one: it never began, so it is none of the runs that failed."""
    result = runs.run("multi30k", "--raw", "mistyped", FAKE_DATA="fails")
    assert result.returncode == 1 and "no corpus" in result.stderr
    assert list(runs.work.glob("results/*/*.json")) == []
    status = runs.command("sweep", "multi30k", "--work", str(runs.work), "--status")
    assert "failed in prepare: no corpus" in status.stdout


@pytest.mark.parametrize(
    ("argv", "experiment"),
    [
        ([], "iwslt14_de_en_adanorm"),
        (["--recipe", "powernorm"], "iwslt14_de_en_powernorm"),
        (["recipe=powernorm"], "iwslt14_de_en_powernorm"),
        (["--smoke"], "iwslt14_de_en_adanorm_smoke"),
        (["--subword", "sentencepiece"], "iwslt14_de_en_adanorm_sentencepiece"),
    ],
)
def test_options_name_the_experiment(argv, experiment):
    assert spec_of("iwslt14", *argv).experiment == experiment


def training(*argv):
    """The command of the training of a run."""
    return run_stages(spec_of(*argv))[0].command


def test_overrides_reach_the_training():
    argv = ("recipe=powernorm", "norm=powernorm", "seed=3", "norm_variant=released")
    train = training("iwslt14", *argv)
    assert value(train, "--norm-type") == "powernorm"
    assert value(train, "--seed") == "3"
    assert value(train, "--norm-variant") == "released"


def test_the_placement_and_any_value_of_the_recipe():
    argv = ("toy", "placement=post", "model.dropout=0.2", "optimization.lr=[0.001]")
    train = training(*argv)
    assert value(train, "--norm-placement") == "post"
    assert value(train, "--dropout") == "0.2" and value(train, "--lr") == "0.001"
    assert spec_of(*argv).result.name == "layernorm-post-dropout-0.2-lr-0.001-seed1.json"
    assert spec_of(*argv).arm.changes == {
        "model.dropout": 0.2,
        "model.norm_placement": "post",
        "optimization.lr": [0.001],
    }


def test_sentencepiece_is_prepared_apart_and_removed_in_decoding():
    argv = ("iwslt14", "subword=sentencepiece")
    spec = spec_of(*argv)
    assert spec.preparation.options["subword"] == "sentencepiece"
    assert str(spec.data) == f"{spec.work}/data/iwslt14-sentencepiece"
    assert "--remove-bpe=sentencepiece" in evaluation_flags(spec)


def test_options_reach_the_commands():
    assert spec_of("wmt14", "--raw", "a b").preparation.options["raw"].endswith("/a b")
    train = training("wmt14", "--tensorboard", "--", "--clip-norm", "0.5")
    assert value(train, "--tensorboard-logdir").endswith("tensorboard")
    assert value(train, "--clip-norm") == "0.5"  # in place of the recipe's


def test_folding_changes_the_translation_alone(runs):
    runs.run("wmt14")
    runs.take_calls()
    again = runs.run("wmt14", "--fold-norms")
    assert again.stdout.count(DONE) == 1  # the training
    assert [call[2] for call in runs.take_calls()] == ["finish"]
    assert evaluation_flags(spec_of("wmt14", "--fold-norms"))[-1] == "--fold-norms"
    # Both results stay, and so do both translations.
    names = {path.name for path in runs.work.glob("results/*/*.json")}
    assert names == {"layernorm-seed1.json", "layernorm-folded-seed1.json"}
    # to watch it is no other run, nor is one that was moved
    assert runs.run("wmt14", "--tensorboard").stdout.count(DONE) == STAMPED
    runs.work.rename(runs.folder / "moved")
    runs.work = runs.folder / "moved"
    assert runs.run("wmt14").stdout.count(DONE) == STAMPED


LOGGING = ["common.log_interval=7", "--", "--wandb-project", "mine", "--log-format=simple"]


@pytest.mark.parametrize("argv", [LOGGING[:1], LOGGING[1:], LOGGING])
def test_logging_is_no_setting_of_a_run(argv, runs):
    """The run has the recipe's name, its training is the same, and the flags are passed on."""
    result = runs.run("toy", *argv)
    assert result.returncode == 0, result.stderr
    calls = runs.take_calls()
    assert [path.name for path in runs.work.rglob("*seed1.json")] == ["layernorm-seed1.json"]
    train = of_stage(calls, "fairseq_cli.train")
    # the recipe's own is 25; that of the experiment makes a curve of 50 points, and the same run
    assert value(train, "--log-interval") == ("7" if argv[0] == LOGGING[0] else "5")
    assert ("--wandb-project" in train) == ("--" in argv)
    folder = runs.work / "runs/toy/layernorm-seed1"
    log = (folder / "logs/train.log").read_text()
    assert (f"wandb: toy layernorm, seed 1 in {folder}\n" in log) == ("--" in argv)
    assert runs.run("toy").stdout.count(DONE) == STAMPED


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--subword", "chars"], "subword is chars; choose subword-nmt or sentencepiece"),
        (["--sead", "1"], "unknown flag --sead, did you mean --seed?; see norm-plugin run --help"),
        (["--clip-norm", "1"], "flags of fairseq-train go to the end: -- --clip-norm"),
        (["powernorm"], "powernorm"),
        (["norm=powernorm,layernorm"], "is more than one run; use norm-plugin sweep"),
        (["norm=enwik8/adanorm"], "unknown norm 'enwik8/adanorm'; did you mean adanorm"),
        (["norm=glob(*)"], "norm=glob(*) does not list its values; separate them by commas"),
        (["colour=red"], "unknown key colour; choose from norm, seed"),
        (["preset=gpu"], "preset of iwslt14 is gpu; choose none"),
        (["--", "--max-epoch", "3"], "saves 3 checkpoints, but 10 are averaged"),
    ],
)
def test_what_is_wrong_is_one_line_before_anything_is_made(argv, message, runs):
    result = runs.run("iwslt14", *argv)
    assert result.returncode == 2 and message in result.stderr
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    assert result.stdout == "" and runs.outcome() == {} and runs.take_calls() == []


def test_a_flag_of_norms_is_an_override_in_every_verb():
    argv = ["--norm-type", "powernorm", "--norm-alpha-fwd=0.95", "--norm-placement", "post"]
    (swept,) = composed("toy", *argv)
    assert swept.identity() == spec_of("toy", *argv).identity()
    assert swept.label == "powernorm-post-alpha-fwd-0.95"


@pytest.mark.parametrize("seed", ["-1", "1.5", "x", "01", "2147483648", "99999999999"])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(CommandError, match=f"seed is {seed}; it must be an integer from 0 to"):
        spec_of("wmt14", "--seed", seed)


def test_a_pasted_dry_run_does_what_the_run_does(runs, tmp_path):
    argv = ["norm=powernorm", "--raw", "a b, it's", "--", "--clip-norm", "0.5"]
    dry = runs.run("iwslt15", "--dry-run", "--verbose", *argv)
    assert dry.returncode == 0, dry.stderr
    assert runs.outcome() == {} and runs.take_calls() == []

    pasted = runs.bash(dry.stdout)
    assert pasted.returncode == 0, pasted.stderr
    calls, files = runs.take_calls(), runs.outcome()
    (tmp_path / "other").mkdir()
    other = FakeRuns(tmp_path / "other")
    assert other.run("iwslt15", *argv).returncode == 0
    expected = [
        [text.replace(str(other.folder), str(runs.folder)) for text in call]
        for call in other.take_calls()
    ]
    assert expected == calls
    stamps = re.compile(r"\.prepared$")
    assert set(files) == {name for name in other.outcome() if not stamps.search(name)}
