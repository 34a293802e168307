"""The tasks that a model is for: those of other models are refused before it is built."""

from __future__ import annotations

import argparse

import pytest
from fairseq import models
from fairseq.models import MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY, FairseqTask

import norm_plugin.models  # noqa: F401  registers the models
from norm_plugin.models.norm_model import NormModel, check_task

OURS = {name: cls for name, cls in MODEL_REGISTRY.items() if issubclass(cls, NormModel)}
TASKS = sorted({task for cls in OURS.values() for task in cls.tasks})
WRONG = [(name, task) for name, cls in OURS.items() for task in TASKS if task not in cls.tasks]


def bare(task):
    """A task of a registered class, without its data."""
    return object.__new__(TASK_REGISTRY[task])


def test_every_model_says_what_it_is_for():
    for name, cls in OURS.items():
        assert cls.tasks, name
        for task in cls.tasks:
            check_task(cls, bare(task))
            check_task(cls, object.__new__(type("OfMyOwn", (TASK_REGISTRY[task],), {})))


def test_the_task_of_another_model_is_refused():
    """For example, a language model is refused for translation."""
    name, task = WRONG[0]
    with pytest.raises(ValueError, match="is not a model for --task") as error:
        models.build_model(argparse.Namespace(arch=name), bare(task))
    refused, advice = str(error.value).split(": ")
    assert refused == f"{name} is not a model for --task {task}"
    given, archs = advice.split(", or --arch ")
    assert given == f"give --task {' or '.join(OURS[name].tasks)}"
    assert archs.split(" or ") == [arch for arch, cls in OURS.items() if task in cls.tasks]


def test_what_is_not_known_is_accepted():
    class OfMyOwn(NormModel):
        """A model that declares no task."""

    for cls in OURS.values():
        check_task(cls, object.__new__(FairseqTask))
    for task in TASKS:
        check_task(OfMyOwn, bare(task))
