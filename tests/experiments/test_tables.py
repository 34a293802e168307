from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from norm_plugin.analysis.stats import half_interval
from norm_plugin.analysis.study import main, score_table
from norm_plugin.commands.command_line import CommandError, run_command
from norm_plugin.experiments.results import SCHEMA, read_results, write_result

SIGNATURE = "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"
SECTIONS = ("model", "task", "criterion", "dataset", "optimization", "optimizer", "lr_scheduler")


def result(norm: str = "layernorm", seed: int = 1, bleu: float = 40.0, speed: float | None = 1.5):
    return {
        "schema": SCHEMA,
        "experiment": "multi30k",
        "norm": norm,
        "seed": seed,
        "split": "test",
        "metric": "bleu",
        "scores": {
            "tokenized": {"score": bleu, "label": "fairseq BLEU4"},
            "exact": {"score": bleu - 0.25, "label": "exact BLEU"},
            "sacrebleu": {"score": bleu - 1, "signature": SIGNATURE},
        },
        "model": {"parameters": 1234567},
        "training": {"updates_per_second": speed},
        "settings": {section: {"key": 1} for section in SECTIONS},
        "data": {"checksum": "c0ffee"},
    }


def table(results):
    """The table of results that were written to files."""
    with tempfile.TemporaryDirectory() as folder:
        for each in results:
            write_result(each, Path(folder))
        return score_table(read_results(Path(folder) / "multi30k"))


def row(text: str, norm: str) -> list[str]:
    line = next(line for line in text.split("\n") if line.startswith(f"| {norm} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_one_seed() -> None:
    text = table([result(), result("none", speed=None)])
    expected = ["layernorm", "1", "1,234,567", "40.00", "one seed", "39.75", "39.00", "1.50"]
    assert row(text, "layernorm") == expected
    assert row(text, "none")[-1] == "unknown"
    assert text.count(SIGNATURE) == 1
    assert "BLEU (tokenized): fairseq BLEU4." in text
    assert "Student" not in text


def test_three_seeds() -> None:
    text = table([result(seed=seed, bleu=bleu) for seed, bleu in ((1, 40.0), (2, 41.0), (3, 42.0))])
    # Standard deviation 1, t with 2 degrees of freedom at 97.5 % is 4.3027; 4.3027 / sqrt(3).
    expected = ["1, 2, 3 (n = 3)", "1,234,567", "41.00", "± 2.48", "40.75", "40.00", "1.50"]
    assert row(text, "layernorm")[1:] == expected
    assert "Student's t" in text


def test_results_from_before_the_exact_score() -> None:
    old = result()
    del old["scores"]["exact"]
    text = table([old, result(seed=2), result("none")])
    assert row(text, "layernorm")[5] == "not computed"
    assert row(text, "none")[5] == "39.75"
    assert "exact BLEU." in text.split("\n")
    assert "exact BLEU: not computed when these runs were scored." in table([old])


def test_a_note_on_a_score_is_shown() -> None:
    noted = result()
    noted["scores"]["tokenized"]["note"] = "fairseq-generate printed another"
    assert "Note on layernorm, seed 1: fairseq-generate printed another." in table([noted])


def test_the_interval_against_a_printed_table_of_t() -> None:
    # t(0.975): 12.706 for 1, 2.776 for 4 degrees of freedom, given to three digits.
    assert half_interval([1.0, 3.0]) == pytest.approx(12.706 * 2**0.5 / 2**0.5, abs=5e-4)
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert half_interval(values) == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, abs=5e-4)
    assert half_interval([2.0, 2.0]) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {"checksum": "other"}}, "data checksum"),
        ({"split": "valid"}, "split"),
        ({"settings": {**result()["settings"], "model": {"key": 2}}}, "settings of model"),
    ],
)
def test_runs_that_cannot_stand_together(change, message) -> None:
    with pytest.raises(CommandError, match=message) as error:
        table([result(seed=1), {**result(seed=2), **change}])
    assert "layernorm seed 1 and layernorm seed 2" in str(error.value)


def of_split(seed: int, **data) -> dict:
    """A run on a corpus that each seed splits anew."""
    made = result(seed=seed)
    made["settings"]["task"] = {"key": 1, "seed": seed}
    made["data"] = {"checksum": f"of {seed}", "corpus": "rt", "settings": {"split_seed": seed}}
    made["data"]["settings"].update(data)
    return made


def test_each_seed_may_have_a_split_of_its_own() -> None:
    assert row(table([of_split(1), of_split(2)]), "layernorm")[1] == "1, 2 (n = 2)"
    larger = of_split(2)  # of another dictionary
    larger["model"] = {**larger["model"], "parameters": 2_000_000}
    least = f"{of_split(1)['model']['parameters']:,}"
    assert row(table([of_split(1), larger]), "layernorm")[2] == f"{least} to 2,000,000"
    with pytest.raises(CommandError, match="settings of the data"):
        table([of_split(1), of_split(2, lowercase=True)])
    other = {**of_split(1), "norm": "none"}
    other["data"] = {**other["data"], "checksum": "another"}
    with pytest.raises(CommandError, match="data checksum"):
        table([of_split(1), other])


def test_scores_of_two_metrics_do_not_mix() -> None:
    with pytest.raises(CommandError, match="differ in metric"):
        table(
            [
                result(),
                {**result("none"), "metric": "perplexity", "scores": {"loss": {"score": 9.0}}},
            ]
        )


def test_a_label_that_begins_with_the_title_is_not_repeated() -> None:
    label = "nats a character, test, best checkpoint in validation"
    scores = {"loss": {"score": 1.5, "label": label}}
    notes = table([{**result(), "metric": "nats", "scores": scores}]).split("\n")
    assert notes[-1] == f"{label}."


def test_norms_may_differ_in_their_settings() -> None:
    other = result("none")
    other["settings"]["model"] = {"key": 2}
    assert row(table([result(), other]), "none")


def test_the_table_on_screen(tmp_path, capsys) -> None:
    write_result(result(), tmp_path)
    assert main([str(tmp_path / "multi30k")]) == 0
    assert capsys.readouterr().out == table([result()]) + "\n"
    with pytest.raises(SystemExit) as stop:
        run_command(lambda: main([str(tmp_path / "nothing")]))
    assert stop.value.code == 1
    line = f"error: no results in {tmp_path / 'nothing'}: there is no such folder. "
    assert capsys.readouterr().err.startswith(line)
