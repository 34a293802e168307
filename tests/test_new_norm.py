"""The norms of docs/extending.md, put into a copy of the project, pass every test of the norms."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# No kernels: the norms are tested in plain torch. No workers: the examples have no option sync.
UNNEEDED = shutil.ignore_patterns("__pycache__", "*.so", "csrc", "test_workers.py")
COPIED = ("norm_plugin", "tests/norms", "tests/reference")

MEAN_NORM_REFERENCE = """
import numpy as np

from reference.base import Reference, transcribes
from reference.batch_parts import mean_over


@transcribes("meannorm", {}, {"momentum": 0.5, "eps": 0.1})
class MeanNorm(Reference):
    def __init__(self, dim, **kwargs):
        super().__init__(dim, **kwargs)
        self.running = np.ones(dim)

    def forward(self, x, valid):
        self.real, self.x = np.flatnonzero(valid), x
        mean = mean_over(self.real, abs(x))
        self.own = {"running": mean}
        m = self.options["momentum"]
        self.running = (1 - m) * self.running + m * mean
        self.below = mean + self.options["eps"]
        self.x_hat = np.zeros_like(x)
        for i in self.real:
            self.x_hat[i] = x[i] / self.below
        return self.gamma * self.x_hat + self.beta

    def backward(self, g):
        self.keep_affine_grads(g, self.x_hat)
        self.state = {"running": self.running}
        g = g * self.gamma
        along = sum(g[i] * self.x[i] for i in self.real) / self.below**2
        dx = np.zeros_like(g)
        for i in self.real:
            # d m / d x_i = sign(x_i) / n
            dx[i] = g[i] / self.below - along * np.sign(self.x[i]) / len(self.real)
        return dx
"""


def example(word: str) -> str:
    """The one code block of docs/extending.md that has ``word`` in it."""
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return found


def test_the_examples_of_the_documentation_pass_every_test(tmp_path) -> None:
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=UNNEEDED)
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for path, text in {
        "norm_plugin/norms/tanh_norm.py": example('@register_norm("tanhnorm"'),
        "norm_plugin/norms/mean_norm.py": example('"meannorm", formula'),
        "tests/reference/tanh_norm.py": example('@transcribes("tanhnorm"'),
        "tests/reference/mean_norm.py": MEAN_NORM_REFERENCE,
    }.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "(tanhnorm or meannorm) and not cpu"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "NORM_KERNELS": "off"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
