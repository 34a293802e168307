"""``replace_norms`` in the text models of transformers."""

from __future__ import annotations

import re

import pytest
from forked import ROOT

from text_models import DONE, NoModelError, architectures, new_model, try_model

pytest.importorskip("transformers", reason="no transformers: pip install norm_plugin[huggingface]")


@pytest.mark.parametrize("name", ["opt", "qwen3", "gemma"])
def test_a_model_takes_a_norm(name):
    # a flattened input; norms of queries and keys; 1 + weight
    assert try_model(new_model(name), ["batchnorm"]) == {"itself": DONE, "batchnorm": DONE}


def test_a_model_without_activation_checkpointing_trains_without_it():
    assert try_model(new_model("dpr"), ["dyt"]) == {"itself": DONE, "dyt": DONE}


def test_a_model_that_shortens_its_input_is_refused():
    outcomes = try_model(new_model("canine"), ["rmsnorm", "batchnorm"])
    assert outcomes["itself"] == outcomes["rmsnorm"] == DONE
    assert outcomes["batchnorm"].startswith("refused: chars_to_molecules.LayerNorm gets an input")


@pytest.mark.slow
def test_every_architecture_takes_a_norm_or_is_refused():
    refused, failed, trained = set(), {}, 0
    for name in architectures():
        try:
            outcomes = try_model(new_model(name))
        except NoModelError:
            continue
        trained += 1
        if any(each.startswith("refused") for each in outcomes.values()):
            refused.add(name)
        failed |= {(name, by): each for by, each in outcomes.items() if each.startswith("failed")}
    assert not failed and trained > 100
    page = (ROOT / "docs" / "examples.md").read_text("utf-8")
    assert [name for name in refused if not re.search(rf"\b{name}\b", page)] == []
