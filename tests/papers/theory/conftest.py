"""What several tests of the claims measure."""

from __future__ import annotations

import pytest
from tiny_run import write_dictionaries, write_pairs

from known_cases import LABELS, PAIRS, H, Layer
from papers.theory import models


@pytest.fixture
def setting():
    """A model of one such layer, whose x has 4 of its channels; the last label, 9, is padding."""
    layer = Layer()
    return models.Setting(layer, [layer], 4, lambda: (layer(H), []), LABELS, 9, LABELS.ne(9))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The folder of a binarized corpus of random sentences."""
    return write_pairs(write_dictionaries(tmp_path_factory.mktemp("corpus") / "bin"), PAIRS)
