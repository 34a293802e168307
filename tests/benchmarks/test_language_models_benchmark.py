"""benchmarks/language_models.py: what its models are, and that each makes updates."""

from __future__ import annotations

import pytest
from torch import nn

import language_models


@pytest.mark.parametrize("name", language_models.MODELS)
def test_an_update_changes_the_model_and_the_memory_is_that_of_its_name(name, monkeypatch):
    built = []
    build = language_models.build_model

    def small(dictionary, *flags):
        size = ("--decoder-layers", 1, "--decoder-embed-dim", 16, "--decoder-ffn-embed-dim", 16)
        more = (*size, "--decoder-input-dim", 16, "--decoder-output-dim", 16)
        built.append(build(dictionary, *flags, *more))
        return built[0]

    monkeypatch.setattr(language_models, "build_model", small)
    update = language_models.updates(name)
    (model,) = built
    before = nn.utils.parameters_to_vector(model.parameters()).clone()
    update()
    update()
    assert not before.equal(nn.utils.parameters_to_vector(model.parameters()))
    memories = getattr(model.decoder, "memories", {})
    length = memories[True].states[0].size(0) if memories else 0
    expected = 0 if name == language_models.PLAIN else int(name.split()[-1])
    assert length == expected
