"""tools/replaced_models.py: replace_norms in the text models of transformers."""

from __future__ import annotations

import json

import pytest

import replaced_models
from replaced_models import DONE, NO_MODEL, TRIALS, new_model, try_model

pytest.importorskip("transformers", reason="no transformers: pip install norm_plugin[huggingface]")


@pytest.mark.parametrize("name", ["opt", "qwen3", "gemma"])
def test_a_model_takes_a_norm(name):
    # a flattened input; norms of queries and keys; 1 + weight
    assert try_model(new_model(name), ["batchnorm"]) == {"itself": DONE, "batchnorm": DONE}


def test_a_model_without_activation_checkpointing_trains_without_it():
    assert try_model(new_model("dpr"), ["dyt"]) == {"itself": DONE, "dyt": DONE}


def test_a_model_that_shortens_its_input_is_refused_before_training():
    outcomes = try_model(new_model("canine"), ["rmsnorm", "batchnorm"])
    assert outcomes["itself"] == outcomes["rmsnorm"] == DONE
    assert outcomes["batchnorm"].startswith("refused: chars_to_molecules.LayerNorm gets an input")


def test_the_table_counts_outcomes(tmp_path):
    done = dict.fromkeys(TRIALS, DONE)
    outcomes = {
        "one": done,
        "two": {**done, "batchnorm": "refused: norm gets an input of shape (3, 1, 8) for"},
        "three": {**done, "dyt": "failed: RuntimeError: odd"},
        "four": {NO_MODEL: "it has 2 parameters"},
    }
    result = {
        "versions": {"python": "3.11.1", "transformers": "5.0.0"},
        "git": {"commit": "0123456789", "dirty": False},
        "outcomes": outcomes,
    }
    path = tmp_path / replaced_models.RESULT
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(result))
    lines = replaced_models.models_table(tmp_path).splitlines()
    assert "| the same norm | 3 | 3 | 0 | 0 |" in lines
    assert "| `batchnorm` | 3 | 2 | 1 | 0 |" in lines
    assert "| `dyt` | 3 | 2 | 0 | 1 |" in lines
    assert "| the input of a norm has other positions than the tokens | two |" in lines
    assert "| failed: RuntimeError: odd | three |" in lines
    assert "transformers 5.0.0, commit 0123456. Of 4 architectures" in lines[-1]
    assert "alone, 1 gave no small model" in lines[-1]


@pytest.mark.slow
def test_every_architecture_takes_a_norm_or_is_refused():
    outcomes = dict(replaced_models.try_all(replaced_models.architectures()))
    failed = {
        (name, trial): outcome
        for name, each in outcomes.items()
        for trial, outcome in each.items()
        if outcome.startswith("failed")
    }
    assert not failed and len(outcomes) > 100
