"""fairseq models without the data of a task, and a tiny architecture that fairseq lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from fairseq import models, options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from norm_plugin.models.architectures import multi30k_tiny

# fairseq has no such architecture
models.register_model_architecture("transformer", "transformer_multi30k_tiny")(multi30k_tiny)


def dictionary_of(words: int) -> Dictionary:
    """Return a dictionary with this number of entries, including fairseq's own."""
    dictionary = Dictionary()
    for number in range(words - len(dictionary)):
        dictionary.add_symbol(str(number))
    return dictionary


def build_model(dictionary: Dictionary, *flags: object) -> Any:
    """Build the model of ``fairseq-train`` flags from the first seed, with one dictionary."""
    argv = ["DATA", "--lr-scheduler", "inverse_sqrt", *map(str, flags)]
    args = options.parse_args_and_arch(options.get_training_parser(), argv)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    torch.manual_seed(1)
    return models.build_model(convert_namespace_to_omegaconf(args).model, task)
