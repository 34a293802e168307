"""``replace_norms`` in the text models of transformers."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from forked import ROOT

from text_models import DONE, INITIALIZED, ITSELF, NoModelError, architectures, new_model, try_model

pytest.importorskip("transformers", reason="no transformers: pip install norm_plugin[huggingface]")


@pytest.mark.parametrize("name", ["opt", "qwen3", "gemma"])
def test_a_model_takes_a_norm(name):
    # a flattened input; norms of queries and keys; 1 + weight
    outcomes = try_model(new_model(name), ["batchnorm"])
    initialized = outcomes.pop(INITIALIZED)
    assert set(outcomes.values()) == {DONE}
    if name == "gemma":  # a gain of 1 + weight has no value to change yet
        assert initialized.startswith("refused: the gain of a norm of GemmaModel would be another")
    else:
        assert initialized == DONE


def test_a_model_without_activation_checkpointing_trains_without_it():
    assert try_model(new_model("dpr"), ["dyt"])["dyt"] == DONE


def test_a_model_that_shortens_its_input_is_refused():
    outcomes = try_model(new_model("canine"), ["rmsnorm", "batchnorm"])
    assert outcomes["itself"] == outcomes["rmsnorm"] == DONE
    assert outcomes["batchnorm"].startswith("refused: chars_to_molecules.LayerNorm gets an input")


@pytest.mark.slow
def test_every_architecture_takes_a_norm_or_is_refused():
    refused, failed, counts = set(), {}, Counter()
    for name in architectures():
        try:
            outcomes = try_model(new_model(name))
        except NoModelError:
            continue
        counts.update((by, each.partition(":")[0]) for by, each in outcomes.items())
        if any(each.startswith("refused") for each in outcomes.values()):
            refused.add(name)
        failed |= {(name, by): each for by, each in outcomes.items() if each.startswith("failed")}
    print(*(f"{by}: {count} {each}" for (by, each), count in sorted(counts.items())), sep="\n")
    assert not failed and counts[ITSELF, DONE] > 100
    page = (ROOT / "docs" / "examples.md").read_text("utf-8")
    assert [name for name in refused if not re.search(rf"\b{name}\b", page)] == []
