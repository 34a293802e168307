"""The table of an experiment: its cells and notes, and which runs it may contain."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from made_up_results import folder_of, made_up
from norm_lab.report.score_table import main, score_table
from norm_lab.results.result import write_result
from norm_lab.results.table import read_results
from norm_plugin.io.command_line import CommandError, run_command

SIGNATURE = "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"


def scored(norm="layernorm", seed=1, bleu=40.0, **changes):
    """A result with all kinds of BLEU."""
    scores = {
        "tokenized": {"score": bleu, "label": "fairseq BLEU4"},
        "exact": {"score": bleu - 0.25, "label": "exact BLEU"},
        "sacrebleu": {"score": bleu - 1, "signature": SIGNATURE},
    }
    return made_up(norm, seed, **{"scores": scores, **changes})


def table(*results):
    """The table of results that were written to files."""
    with tempfile.TemporaryDirectory() as folder:
        return score_table(read_results(*folder_of(Path(folder), *results)))


def row(text, norm):
    line = next(line for line in text.split("\n") if line.startswith(f"| {norm} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_one_seed():
    text = table(scored(), scored("none", training__updates_per_second=None))
    expected = ["layernorm", "1", "1,234,567", "40.00", "one seed", "39.75", "39.00", "0.50"]
    assert row(text, "layernorm") == expected
    assert row(text, "none")[-1] == "unknown"
    assert text.count(SIGNATURE) == 1
    assert "BLEU (tokenized): fairseq BLEU4." in text
    assert "Student" not in text


def test_three_seeds():
    text = table(*(scored(seed=seed, bleu=39.0 + seed) for seed in (1, 2, 3)))
    # Standard deviation 1, t with 2 degrees of freedom at 97.5 % is 4.3027; 4.3027 / sqrt(3).
    expected = ["1, 2, 3 (n = 3)", "1,234,567", "41.00", "± 2.48", "40.75", "40.00", "0.50"]
    assert row(text, "layernorm")[1:] == expected
    assert "Student's t" in text


def test_results_from_before_the_exact_score():
    old = scored()
    del old["scores"]["exact"]
    text = table(old, scored(seed=2), scored("none"))
    assert "Student's t" in text  # for two seeds, too
    assert row(text, "layernorm")[5] == "not computed"
    assert row(text, "none")[5] == "39.75"
    assert "exact BLEU." in text.split("\n")
    assert "exact BLEU" not in table(old)  # a column without a value


def test_a_note_on_a_score_is_shown():
    noted = scored()
    noted["scores"]["tokenized"]["note"] = "fairseq-generate printed another"
    assert "Note on layernorm, seed 1: fairseq-generate printed another." in table(noted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data__checksum": "other"}, "data checksum"),
        ({"split": "valid"}, "split"),
        ({"settings__model": {"key": 2}}, "settings of model"),
    ],
)
def test_runs_that_cannot_stand_together(change, message):
    with pytest.raises(CommandError, match=message) as error:
        table(scored(), scored(seed=2, **change))
    assert "layernorm seed 1 and layernorm seed 2" in str(error.value)


def of_split(seed, norm="layernorm", checksum="of {}", parameters=1234567, bleu=40.0, **data):
    """A run on a corpus that each seed splits anew."""
    settings = {"split_seed": seed, **data}
    return scored(
        norm,
        seed,
        bleu,
        settings__task={"key": 1, "seed": seed},
        data={
            "checksum": checksum.format(seed),
            "corpus": "rt",
            "settings": settings,
            "training_pairs": 800,
        },
        scores__tokenized__sentences=100,
        model__parameters=parameters,
    )


def test_each_seed_may_have_a_split_of_its_own():
    assert row(table(of_split(1), of_split(2)), "layernorm")[1] == "1, 2 (n = 2)"
    # standard deviation 1, t with 2 degrees of freedom 4.3027, variance of the mean 1/3 + 100/800
    splits = table(*(of_split(seed, bleu=39.0 + seed) for seed in (1, 2, 3)))
    assert row(splits, "layernorm")[4] == "± 2.91"
    larger = of_split(2, parameters=2_000_000)  # of another dictionary
    assert row(table(of_split(1), larger), "layernorm")[2] == "1,234,567 to 2,000,000"
    with pytest.raises(CommandError, match="settings of the data"):
        table(of_split(1), of_split(2, lowercase=True))
    with pytest.raises(CommandError, match="data checksum"):
        table(of_split(1), of_split(1, "none", checksum="another"))


def test_scores_of_two_metrics_do_not_mix():
    with pytest.raises(CommandError, match="differ in metric"):
        table(scored(), scored("none", metric="perplexity", scores={"loss": {"score": 9.0}}))


def test_a_label_that_begins_with_the_title_is_not_repeated():
    label = "nats per character, test, best checkpoint in validation"
    scores = {"loss": {"score": 1.5, "label": label}}
    assert table(scored(metric="nats", scores=scores)).split("\n")[-1] == f"{label}."


def test_norms_may_differ_in_their_settings():
    assert row(table(scored(), scored("none", settings__model={"key": 2})), "none")


def test_the_table_on_screen(tmp_path, capsys):
    folder = write_result(scored(), tmp_path).parent
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out == table(scored()) + "\n"
    with pytest.raises(SystemExit) as stop:
        run_command(lambda: main([str(tmp_path / "nothing")]))
    assert stop.value.code == 2
    line = f"{tmp_path / 'nothing'} does not exist; a finished run writes"
    assert line in capsys.readouterr().err
