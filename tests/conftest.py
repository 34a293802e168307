"""Settings that must be in place before a test, or what it imports, needs them."""

from __future__ import annotations

import gc
import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache, partial
from pathlib import Path

import pytest
import torch
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser

gc.disable()  # of the imports and the collection, most of whose objects stay: a third of their time

HERE = Path(__file__).parent
COVERED = ("norm_plugin.norms", "norm_plugin.checkpoints.average")
"""The measured package: its lines outside functions run when it is imported."""
COVERING = ("norms/", "checkpoints/test_average")
"""Coverage is measured during these tests; it would make the others, which it needs less, slow."""
REPEATING = ("norms/test_against_references.py", "norms/test_properties.py")
"""Coverage is not measured during these: they run no line of a norm that the others do not."""

# Triton's kernels are tested compiled where there is a GPU, and else by its interpreter, which
# has to be chosen before anything imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Only a power cut loses what the system has not yet written to the disk, a kill does not. Waiting
# for the disk took half a minute in test_demo, test_interruptions and test_tune alone.
os.fsync = lambda descriptor: None
os.sync = lambda: None

# hydra copies the schemas of fairseq each time that it composes, a third of its half second, and
# copies again what it takes from them.
ConfigStore.__deepcopy__ = lambda self, memo: self
yaml.SafeLoader = yaml.CSafeLoader  # the parser in C, by which omegaconf reads files
# fairseq passes hydra some 250 overrides for each training, nearly always the same ones, and
# parsing them is a third of a composition.
parse_rule = lru_cache(maxsize=None)(partial(OverridesParser.parse_rule, OverridesParser.create()))
OverridesParser.parse_rule = lambda self, text, rule: copy(parse_rule(text, rule))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: packed ones hold the time, and each worker would differ."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Undo what a command of an earlier test has set for the rest of its process."""
    for package in ("norm_plugin", "fairseq"):
        logging.getLogger(package).setLevel(logging.NOTSET)


@contextmanager
def coverage_off(config: pytest.Config) -> Iterator[None]:
    """Pause coverage where it is measured, also for the processes that are forked meanwhile."""
    plugin = config.pluginmanager.getplugin("_cov")
    if plugin is None or plugin.cov_controller is None:
        yield
        return
    plugin.cov_controller.pause()
    try:
        yield
    finally:
        plugin.cov_controller.resume()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Import what coverage is of, then all else without it: it makes imports take half as long."""
    for name in COVERED:
        importlib.import_module(name)
    try:
        with coverage_off(session.config):
            return (yield)
    finally:
        gc.freeze()  # later collections need not look at it
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Switch coverage off where it is not needed, also for fixtures and the processes they fork."""
    name = item.path.relative_to(HERE).as_posix()
    if name.startswith(COVERING) and name not in REPEATING:
        return (yield)
    with coverage_off(item.config):
        return (yield)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The norms and placements that a test registers are gone after it."""
    from norm_plugin.norms.base import registry
    from norm_plugin.placements import PLACEMENTS

    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    names, placements = list(registry.NORM_TYPES), dict(PLACEMENTS)
    yield
    registry.NORM_TYPES[:] = names
    PLACEMENTS.clear()
    PLACEMENTS.update(placements)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Start the server from which ``WARM_PYTHON`` requests processes."""
    from forked import serve

    serve()


@pytest.fixture
def warm(fork_server: None) -> Iterator[None]:
    """Fork the commands of the package off this process, which spares them their imports."""
    from forked import WARM_PYTHON

    from norm_lab.paths import PYTHON

    python = list(PYTHON)
    PYTHON[:] = WARM_PYTHON
    yield
    PYTHON[:] = python
