"""papers/settings.py: a recipe has the values of its paper, or says why not."""

from __future__ import annotations

import pytest

from norm_plugin.io.command_line import CommandError
from papers import settings
from papers.settings import AGREES, SILENT, compared, declared_tasks, rows_of

TASKS = {task["title"]: task for task in declared_tasks()}


def only(title, setting):
    """The declaration of a task with one row."""
    (row,) = [row for row in rows_of(TASKS[title]) if row["setting"] == setting]
    return {**TASKS[title], "own": (), "rows": [row]}


@pytest.mark.parametrize("title", TASKS)
def test_a_recipe_leaves_its_paper_with_a_reason_only(title):
    for row in compared(TASKS[title]):
        assert row.why and (row.paper == SILENT) == (row.at == "-")  # it says where, and why


@pytest.mark.parametrize(
    ("title", "setting", "override", "message"),
    [
        ("PowerNorm: PTB", "dropout", "model.dropout=0.1", "says 0.3, the recipe has 0.1"),
        (
            "PowerNorm: PTB",
            "norms that are replaced",
            "+model.norm_type_decoder_ffn=layernorm",
            "says all",
        ),
        ("AdaNorm: IWSLT15 En-Vi", "C", "model.norm_scale=2", "the recipe has 2; correct it"),
        ("AdaNorm: IWSLT14 De-En", "batches per update", "optimization.update_freq=[4]", "has 4"),
        ("AdaNorm: WMT14 En-De", "beam", "generation.beam=5", "the recipe has 5"),
    ],
)
def test_a_changed_recipe_is_found(title, setting, override, message):
    task = only(title, setting)
    compared(task)
    task["overrides"] = [*task.get("overrides", ()), override]
    with pytest.raises(CommandError) as found:
        compared(task)
    assert message in str(found.value)
    assert str(found.value).startswith(f"{title}, {setting}: ")


def test_a_changed_example_is_found(monkeypatch):
    task = only("AdaNorm: MNIST", "batch")
    monkeypatch.setattr(settings.importlib.import_module("mnist"), "BATCH", 64)
    with pytest.raises(CommandError, match="the paper says 32, the recipe has 64"):
        compared(task)


def test_a_corpus_of_other_sizes_is_found(monkeypatch):
    task = only("AdaNorm: RT", "training, validation, test")
    assert compared(task)[0].why == AGREES
    corpus = settings.importlib.import_module("rt_polarity").CORPUS
    monkeypatch.setitem(corpus.raw.sizes, "test", 1066)
    with pytest.raises(CommandError, match="at random, the recipe has 8608, 964, 1066"):
        compared(task)


def test_a_reason_without_a_difference_is_refused():
    task = only("PowerNorm: PTB", "dropout")
    task["rows"][0]["why"] = "our choice"
    with pytest.raises(CommandError, match="agrees with the paper; remove the reason"):
        compared(task)


def test_a_value_that_no_paper_gives_needs_its_source():
    task = only("AdaNorm: RT", "learning rate")
    assert compared(task)[0].paper == SILENT
    del task["rows"][0]["why"]
    with pytest.raises(CommandError, match="the paper says nothing, the recipe has 0.001"):
        compared(task)
