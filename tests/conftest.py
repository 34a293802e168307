"""Settings that have to stand before a test, or what it imports, asks for them."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hydra.core.config_store import ConfigStore

HERE = Path(__file__).parent
COVERING = ("norms/", "checkpoints/test_average")
"""Coverage is measured during these tests; it would make the others, which it needs less, slow."""

# Triton's kernels are tested compiled where there is a GPU, and else by its interpreter, which
# has to be chosen before anything imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


# hydra copies the schemas of fairseq each time that it composes, a third of its half second, and
# copies again what it takes from them.
ConfigStore.__deepcopy__ = lambda self, memo: self


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name bytes by their argument: packed ones hold the time, and each worker would differ."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    """Keep what was imported out of garbage collections, some of which statsmodels asks for."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Undo what a command of an earlier test has set for the rest of its process."""
    for package in ("norm_plugin", "fairseq"):
        logging.getLogger(package).setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Switch coverage off where it is not needed, also for fixtures and the processes they fork."""
    plugin = item.config.pluginmanager.getplugin("_cov")
    measured = item.path.relative_to(HERE).as_posix().startswith(COVERING)
    if plugin is None or plugin.cov_controller is None or measured:
        return (yield)
    plugin.cov_controller.pause()
    try:
        return (yield)
    finally:
        plugin.cov_controller.resume()


@pytest.fixture(scope="session")
def fork_server() -> None:
    """What ``WARM_PYTHON`` asks."""
    from forked import serve

    serve()


@pytest.fixture
def warm(fork_server: None) -> Iterator[None]:
    """Fork the commands of the package off this process, which spares them their imports."""
    from forked import WARM_PYTHON

    from norm_plugin.experiments import spec

    python = list(spec.PYTHON)
    spec.PYTHON[:] = WARM_PYTHON
    yield
    spec.PYTHON[:] = python
