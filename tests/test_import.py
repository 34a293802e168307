"""What importing the norms does to a process: nothing that a plain torch script would notice."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.placements import PLACEMENTS

ROOT = Path(__file__).resolve().parents[1]

PLAIN_TORCH = """
import inspect, json, logging, sys
import torch

def state():
    seen = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "torch":
            for key, value in list(vars(module).items()):
                if callable(value):
                    seen[name, key] = value
                if inspect.isclass(value):
                    seen.update({(name, key, part): one for part, one in vars(value).items()
                                 if inspect.isfunction(one)})
    return seen

def logs():
    named = {name: (one.level, list(one.handlers)) for name, one
             in logging.root.manager.loggerDict.items()
             if isinstance(one, logging.Logger) and not name.startswith("norm_plugin.")}
    return logging.root.level, list(logging.root.handlers), logging.root.manager.disable, named

def kernels():
    names = {"triton", "norm_plugin.kernels", "norm_plugin.kernels.cpu._native"}
    return sorted(names & set(sys.modules))

def hooks():
    optimizer = sys.modules["torch.optim.optimizer"]
    return len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks)

functions, logged, loaded = state(), logs(), set(sys.modules)
allowed = list(torch.serialization.get_safe_globals())
from norm_plugin.norms import NORM_TYPES, build_norm
kernels_by_import = kernels()
for name in ("layernorm", "rmsnorm", "dyt"):
    build_norm(name, 8)
hooks_by_others = hooks()
norms = {name: build_norm(name, 8) for name in NORM_TYPES}

def replaced():
    after = state()
    return sorted({".".join(key[1:]) for key in functions if after[key] is not functions[key]})

by_building = replaced()
for name, norm in norms.items():
    assert norm(torch.ones(2, 3, 8)).shape == (2, 3, 8), name
print(json.dumps({
    "packages": sorted({name.partition(".")[0] for name in set(sys.modules) - loaded}),
    "rooms": sorted({".".join(name.split(".")[:2]) for name in sys.modules
                     if name.startswith("norm_plugin")}),
    "replaced by building a norm": by_building,
    "replaced once a norm with statistics of gradients trains": replaced(),
    "logging is left alone": logs() == logged,
    "safe globals are left alone": torch.serialization.get_safe_globals() == allowed,
    "kernels that the import loads": kernels_by_import,
    "hooks on optimizers before and after a norm with statistics": [hooks_by_others, hooks()],
    "kernels that norms on the CPU load": kernels(),
}))
"""

MODELS_LATER = """
import norm_plugin
import fairseq
from fairseq.models import MODEL_REGISTRY
assert "norm_transformer" not in MODEL_REGISTRY
import norm_plugin.models
assert "norm_transformer" in MODEL_REGISTRY
"""

FAIRSEQ_FIRST = """
import fairseq
from fairseq.models import MODEL_REGISTRY
import norm_plugin.norms
assert "norm_transformer" in MODEL_REGISTRY
"""


WITHOUT_DOCSTRINGS = """
from norm_plugin.norms import NORM_TYPES, norm_spec
from norm_plugin.placements import PLACEMENTS
names = [option.name for option in norm_spec("powernorm").options]
print(len(NORM_TYPES), len(PLACEMENTS), *names)
"""


def run(script: str, *flags: str) -> str:
    command = [sys.executable, *flags, "-c", script]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_norms_load_torch_alone_and_change_no_more_of_it_than_they_must() -> None:
    seen = json.loads(run(PLAIN_TORCH))
    assert set(seen.pop("packages")) - {"norm_plugin"} <= sys.stdlib_module_names
    assert seen == {
        "rooms": [
            "norm_plugin",
            "norm_plugin.declarations",
            "norm_plugin.kernels",
            "norm_plugin.norms",
        ],
        "replaced by building a norm": ["AveragedModel.update_parameters"],
        "replaced once a norm with statistics of gradients trains": [
            "AveragedModel.update_parameters",
            "GradScaler.scale",
        ],
        "logging is left alone": True,
        "safe globals are left alone": True,
        "kernels that the import loads": [],
        "hooks on optimizers before and after a norm with statistics": [0, 2],
        "kernels that norms on the CPU load": [
            "norm_plugin.kernels",
            "norm_plugin.kernels.cpu._native",
        ],
    }


@pytest.mark.parametrize("script", [MODELS_LATER, FAIRSEQ_FIRST], ids=["later", "first"])
def test_when_the_models_are_registered(script) -> None:
    pytest.importorskip("fairseq", reason="no fairseq: pip install norm_plugin[fairseq]")
    run(script)


def test_a_renamed_copy_says_what_to_do() -> None:
    """fairseq imports a user dir by the name of its folder."""
    path = ROOT / "norm_plugin" / "__init__.py"
    spec = importlib.util.spec_from_file_location("my_plugin", path)
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match="imported as my_plugin, .* rename the folder"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_python_that_drops_docstrings_has_the_same_norms() -> None:
    options = [option.name for option in norm_spec("powernorm").options]
    assert run(WITHOUT_DOCSTRINGS, "-OO").split() == [
        str(len(NORM_TYPES)),
        str(len(PLACEMENTS)),
        *options,
    ]
