"""The scripts of the experiments: what they run, dry runs, and kills at any point."""

from __future__ import annotations

import random
import signal

import pytest

from fake_checkout import FakeCheckout

SCRIPTS = ("run_iwslt14", "run_iwslt15", "run_wmt14", "run_multi30k")
STAGES = ["fetch", "prepare", "binarize", "train", "average", "generate", "score"]
KILLS = 3  # a run


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_stages_run_in_order_and_once(name, checkout):
    first = checkout.script(name, "--norm-type", "rmsnorm", "--seed", "2")
    assert first.returncode == 0, first.stderr
    said = [line.rpartition(": ")[2] for line in first.stdout.splitlines()]
    assert [word for word in said if word in STAGES] == STAGES
    assert len(list((checkout.work / "results").rglob("rmsnorm-seed2.json"))) == 1
    assert not (checkout.root / "results").exists()  # what git tracks stays as it is
    modules = [call[1].rpartition(".")[2] for call in checkout.take_calls() if call[0] == "-m"]
    assert modules == ["checkpoints", "train", "average", "generate", "results"]

    again = checkout.script(name, "--norm-type", "rmsnorm", "--seed", "2")
    assert again.stdout.count("was done before") == 4
    assert [call[0] for call in checkout.take_calls()] == [first_word(name)] * 3


def first_word(script):
    return f"data-prep/{script.partition('_')[2]}.py"


@pytest.mark.parametrize(
    ("words", "experiment", "recipe"),
    [
        ([], "iwslt14_de_en_adanorm", ["norm=layernorm", "common.seed=1", "recipe=adanorm"]),
        (
            ["--recipe", "powernorm", "--norm-type", "powernorm"],
            "iwslt14_de_en_powernorm",
            ["norm=powernorm", "common.seed=1", "recipe=powernorm"],
        ),
        (
            ["--smoke"],
            "iwslt14_de_en_adanorm_smoke",
            ["norm=layernorm", "common.seed=1", "recipe=adanorm", "size=smoke"],
        ),
        (
            ["--subword", "sentencepiece"],
            "iwslt14_de_en_adanorm_sentencepiece",
            ["norm=layernorm", "common.seed=1", "recipe=adanorm"],
        ),
    ],
)
def test_options_name_the_experiment_and_choose_the_recipe(words, experiment, recipe, checkout):
    assert checkout.script("run_iwslt14", *words).returncode == 0
    (train,) = [call for call in checkout.take_calls() if "fairseq_cli.train" in call]
    at = train.index("--recipe")
    assert train[at + 1 : at + 2 + len(recipe)] == ["iwslt14_de_en", *recipe]
    assert len(list((checkout.work / "results" / experiment).glob("*.json"))) == 1


@pytest.mark.parametrize("words", [[], ["--smoke"], ["--subword", "sentencepiece"]])
def test_the_demo_ends_with_a_table_of_its_own_results(words, checkout):
    done = checkout.script("demo", "--norm-type", "rmsnorm", *words)
    assert done.returncode == 0, done.stderr
    assert "\nrow rmsnorm-seed1.json\n" in done.stdout
    (result,) = checkout.work.glob("results/*/rmsnorm-seed1.json")
    assert f"Results: {result.parent}\n" in done.stdout


def test_sentencepiece_is_prepared_apart_and_removed_in_decoding(checkout):
    checkout.script("run_iwslt14", "--subword", "sentencepiece")
    calls = checkout.take_calls()
    prepared = calls[0]
    assert prepared[prepared.index("--subword") + 1] == "sentencepiece"
    assert prepared[prepared.index("--out") + 1] == f"{checkout.work}/data/iwslt14-sentencepiece"
    (generate,) = [call for call in calls if "fairseq_cli.generate" in call]
    assert "--remove-bpe=sentencepiece" in generate


@pytest.mark.parametrize(
    ("words", "flag", "value"),
    [
        (["--tensorboard"], "--tensorboard-logdir", "tensorboard"),
        (["--raw", "a b"], "--raw", "a b"),
        (["--fp16"], "--fp16", None),
        (["--", "--clip-norm", "0.5"], "--clip-norm", "0.5"),
    ],
)
def test_options_reach_the_commands(words, flag, value, checkout):
    assert checkout.script("run_wmt14", *words).returncode == 0
    (call, *_) = [call for call in checkout.take_calls() if flag in call]
    assert value is None or call[call.index(flag) + 1].endswith(value)


def test_folding_changes_the_translation_alone(checkout):
    checkout.script("run_wmt14")
    checkout.take_calls()
    again = checkout.script("run_wmt14", "--fold-norms")
    assert again.stdout.count("was done before") == 2  # training and averaging
    (generate,) = [call for call in checkout.take_calls() if "fairseq_cli.generate" in call]
    assert generate[-1] == "--fold-norms"
    # Both results stay, and so do both logs.
    names = {path.name for path in checkout.work.rglob("*.json") if "seed" in path.name}
    assert names == {"layernorm-seed1.json", "layernorm-folded-seed1.json"}
    assert checkout.script("run_wmt14").stdout.count("was done before") == 4


def test_another_batch_or_number_of_workers_is_another_run(checkout):
    label = 'begin toy toy; echo "$label"'
    cases = [["--gpus", "1"], ["--gpus", "4"], ["--gpus", "4", "--change-batch"], ["--fp16"]]
    labels = [checkout.lib(label, *words).stdout.strip() for words in cases]
    assert labels[:3] == ["layernorm", "layernorm+4gpus", "layernorm+4gpus-batch"]
    assert labels[3].startswith("layernorm+") and len(set(labels)) == 4


def test_watching_by_tensorboard_is_no_other_run(checkout):
    checkout.script("run_wmt14")
    again = checkout.script("run_wmt14", "--tensorboard")
    assert again.stdout.count("was done before") == 4


@pytest.mark.parametrize("words", [["--subword", "chars"], ["--recipe"], ["--sead", "1"]])
def test_wrong_options_are_one_line_and_leave_nothing(words, checkout):
    done = checkout.script("run_iwslt14", *words)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert checkout.outcome() == {}


@pytest.mark.parametrize("name", [*SCRIPTS, "demo"])
def test_a_pasted_dry_run_does_what_the_script_does(name, checkout, tmp_path):
    words = ["--norm-type", "powernorm", "--raw", "a b", "--", "--flag", "it's"]
    dry = checkout.script(name, "--dry-run", *words)
    assert dry.returncode == 0, dry.stderr
    assert checkout.outcome() == {} and checkout.take_calls() == []

    pasted = checkout.bash("-c", dry.stdout)
    assert pasted.returncode == 0, pasted.stderr
    calls, files = checkout.take_calls(), checkout.outcome()
    other = FakeCheckout(tmp_path / "other")
    assert other.script(name, *words).returncode == 0

    def elsewhere(text):
        return text.replace(str(other.root), str(checkout.root)).replace(
            str(other.work), str(checkout.work)
        )

    expected = [call for call in other.take_calls() if not call[1].endswith(".tables")]
    assert [[elsewhere(word) for word in call] for call in expected] == calls
    assert set(files) == {name for name in other.outcome() if "/stages/" not in name}


def test_a_dry_run_leaves_out_what_is_done(checkout):
    checkout.script("run_iwslt14")
    dry = checkout.script("run_iwslt14", "--dry-run")
    assert dry.stdout.count("was done before") == 4
    assert "fairseq_cli" not in dry.stdout


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """How many points a run has, and what it leaves; the same words make the same file names."""
    checkout = FakeCheckout(tmp_path_factory.mktemp("undisturbed"))
    assert checkout.script("run_iwslt14", "--norm-type", "powernorm").returncode == 0
    return checkout.points.stat().st_size, checkout


@pytest.mark.parametrize("seed", range(6))
def test_kills_at_random_points_change_nothing_in_the_end(seed, undisturbed, tmp_path):
    points, expected = undisturbed
    chance = random.Random(seed)
    checkout = FakeCheckout(tmp_path)
    for kill in range(KILLS):
        at = chance.randint(1, points)
        killed = checkout.script("run_iwslt14", "--norm-type", "powernorm", kill_at=at)
        # a later run has less to do, and may come to its end before that point
        assert killed.returncode == -signal.SIGKILL or kill > 0
    done = checkout.script("run_iwslt14", "--norm-type", "powernorm")
    assert done.returncode == 0, done.stderr
    # the stamps of the stages hold words, and those the name of the folder
    ends = [
        {name: "" if "/stages/" in name else text for name, text in one.outcome().items()}
        for one in (checkout, expected)
    ]
    assert ends[0] == ends[1]
