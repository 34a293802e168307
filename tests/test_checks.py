"""``norm-plugin check-user-dir``, the examples of docs/extending.md, and undeclared mixing."""

from __future__ import annotations

import importlib
import re
import sys
from functools import partial, partialmethod
from pathlib import Path

import pytest
import torch

from norm_plugin.checks import placements, user_dir
from norm_plugin.checks.norms import CHECKS
from norm_plugin.cli import main
from norm_plugin.io.command_line import CommandError
from norm_plugin.norms import (
    BatchStatisticsNorm,
    Norm,
    masked_means,
    norm_spec,
    register_norm,
    update_running_average,
)
from norm_plugin.norms.base import registry as registry
from norm_plugin.placements import PLACEMENTS, SUM, Placement

EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


@pytest.fixture(autouse=True)
def own_modules(own_registry):
    """Remove what a test registers or imports after it."""
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("own_"):
            del sys.modules[name]


def failure(check, subject):
    return user_dir.failure(partial(check, subject))


def check(folder):
    importlib.invalidate_caches()
    main(["check-user-dir", str(folder)])


def write(folder, source):
    folder.mkdir()
    (folder / "__init__.py").write_text(source, encoding="utf-8")
    return folder


def test_the_example_of_the_documentation_passes(tmp_path, capsys):
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", EXAMPLE.read_text("utf-8"), re.DOTALL)
    sources = [block for block in blocks if re.search(r"@register_(norm|placement)\(", block)]
    check(write(tmp_path / "own_example", "\n".join(sources)))
    lines = capsys.readouterr().out.splitlines()
    wanted = [f"ok   {norm}: {c}" for norm in ("tanhnorm", "meannorm") for c in CHECKS]
    for placement in ("pre-post", "crossed"):
        wanted += [f"ok   placement {placement}: {c}" for c in placements.CHECKS]
    assert sorted(lines) == sorted(wanted)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return x - x.mean()", "FAIL own: batch_statistics: it mixes positions"),
        ("raise SystemExit(0)", "FAIL own: shape: SystemExit: 0"),
        ("raise Exception('why')", "FAIL own: shape: Exception: why"),
    ],
)
def test_a_norm_that_fails_or_raises_anything_ends_with_status_1(body, said, tmp_path, capsys):
    source = (
        "from norm_plugin.norms import Norm, register_norm\n"
        '@register_norm("own", formula="x", paper="none")\n'
        "class Own(Norm):\n"
        "    def normalize(self, x, valid):\n"
        f"        {body}\n"
    )
    with pytest.raises(CommandError, match=rf"^\d+ of {len(CHECKS)} checks failed$"):
        check(write(tmp_path / f"own_{len(body)}", source))
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "is not a folder; give the folder"),
        ("def (", "cannot import .*: SyntaxError: invalid syntax"),
        ("raise SystemExit(0)", "cannot import .*: SystemExit: 0"),
        ("", "registers no norm and no placement"),
    ],
)
def test_a_folder_that_cannot_be_checked(source, message, tmp_path):
    folder = tmp_path / "own_folder"
    if source is not None:
        write(folder, source)
    with pytest.raises(CommandError, match=message):
        check(folder)


def test_a_folder_with_the_name_of_another_package(tmp_path):
    with pytest.raises(CommandError, match="json is also another Python package; rename the fold"):
        check(write(tmp_path / "json", "raise AssertionError"))


def noise(self, x, valid):
    return x + torch.rand_like(x)


def lasting(self, x, valid):
    self.before = x.mean() + getattr(self, "before", 0)
    return x * self.before


BROKEN = {
    "shape": lambda self, x, valid: x[..., :1],
    "padding": lambda self, x, valid: x - x.flatten(0, -2).mean(0),
    "determinism": noise,
    "gradient": lambda self, x, valid: x.detach() * self.weight,
    "exact_gradient": lambda self, x, valid: self.weight * (x + (x * x).detach()),
    "bounded": lambda self, x, valid: 2 * x * self.weight,
    "batch_statistics": lambda self, x, valid: x - x.flatten(0, -2).mean(0),
    "state": lasting,
}


def registered(name, normalize, base=Norm):
    def init(self, dim: int) -> None:
        base.__init__(self, dim)
        self.weight = torch.nn.Parameter(torch.ones(dim))

    cls = type("Own", (base,), {"__init__": init, "normalize": normalize, "__doc__": "Own."})
    register_norm(name, formula="x", paper="none")(cls)
    return norm_spec(name)


class Leaking(torch.autograd.Function):
    """The identity, with a gradient of 7 at each position of padding."""

    @staticmethod
    def forward(ctx, x, valid):
        ctx.save_for_backward(valid)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (valid,) = ctx.saved_tensors
        return grad.masked_fill(~valid.unsqueeze(-1), 7.0), None


def leaking(self, x, valid):
    return self.weight * (x if valid is None else Leaking.apply(x, valid))


@pytest.mark.parametrize("name", BROKEN)
def test_each_check_finds_its_fault(name):
    assert failure(CHECKS[name], registered("own", BROKEN[name])) is not None


def test_what_a_check_says_of_a_fault():
    assert "a gradient reaches the padding" in failure(
        CHECKS["gradient"], registered("leaking", leaking)
    )
    spec = registered("scaling", lambda self, x, valid: x * self.weight, BatchStatisticsNorm)
    assert "no position affects another" in failure(CHECKS["batch_statistics"], spec)
    spec = registered("own-forward", lambda self, x, valid: x)
    spec.cls.forward = lambda self, x, mask=None: x.float()
    assert "out" in failure(CHECKS["dtype"], spec)
    assert "TypeError" in failure(CHECKS["mask"], spec)


@pytest.mark.parametrize("name", registry.NORM_TYPES)
def test_an_undeclared_property_of_a_norm_is_found(name, monkeypatch):
    spec = norm_spec(name)
    if spec.has_option("loss"):  # the penalty beside a mean over few positions is too small to see
        monkeypatch.setattr(spec.cls, "__init__", partialmethod(spec.cls.__init__, loss="sum"))
    for declared in ("exact_gradient", "bounded"):
        says = getattr(spec.cls, declared)
        monkeypatch.setattr(spec.cls, declared, True)
        assert (failure(CHECKS[declared], spec) is None) == says, declared


class Moving(BatchStatisticsNorm):
    """Divides by the running mean of |x|, and updates it by a weight of its own."""

    forward_updated_buffers = ("running",)

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.register_buffer("running", torch.ones(dim))

    def normalize(self, x, valid):
        (mean,), count = masked_means([x.abs()], valid)
        update_running_average(self.running, mean, 0.1, count)
        return self.affine(x / mean)


class Undeclared(Moving):
    """Does not say what its forwards update."""

    forward_updated_buffers = ()


class ByTheBatchAlways(Moving):
    """Takes the statistics of the batch in inference too, and updates nothing then."""

    def normalize(self, x, valid):
        (mean,), count = masked_means([x.abs()], valid)
        if self.training:
            self.update_running_statistic(self.running, mean, 0.1, count)
        return self.affine(x / mean)


class MovingInInference(Moving):
    """Divides by the running mean in inference, but updates it then."""

    def normalize(self, x, valid):
        (mean,), count = masked_means([x.abs()], valid)
        self.update_running_statistic(self.running, mean, 0.1, count)
        return self.affine(x / (mean if self.training else self.running.clone()))


class MovingTwice(Moving):
    """Right except under activation checkpointing, which updates it once more."""

    def normalize(self, x, valid):
        if not self.training:
            return self.affine(x / self.running)
        (mean,), count = masked_means([x.abs()], valid)
        update_running_average(self.running, mean, self.effective_momentum(0.1), count)
        return self.affine(x / mean)


class Forgetting(Moving):
    """Divides by the running mean in training; a repeated forward reads what was updated since."""

    def normalize(self, x, valid):
        y = self.affine(x / self.running.clone())
        if self.training:
            (mean,), count = masked_means([x.abs()], valid)
            self.update_running_statistic(self.running, mean, 0.1, count)
        return y


@pytest.mark.parametrize(
    ("cls", "check_name", "fault"),
    [
        (
            Undeclared,
            "cumulative_average",
            "a forward updates {'running'}, which forward_updated_buffers does not name",
        ),
        (Moving, "cumulative_average", "use update_running_statistic()"),
        (ByTheBatchAlways, "inference", "in inference, one position changes the output at others"),
        (MovingInInference, "inference", "an inference forward updates running;"),
        (MovingTwice, "recomputation", "checkpointing updates running twice"),
        (
            Forgetting,
            "recomputation",
            "checkpointing changes the gradient; take what a forward uses",
        ),
    ],
)
def test_faults_of_norms_with_batch_statistics_are_told(cls, check_name, fault):
    register_norm("own", formula="x", paper="none")(cls)
    assert fault in failure(CHECKS[check_name], norm_spec("own"))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_here_passes_every_check(name):
    """For the norms, see norms/test_contract.py."""
    checks = placements.CHECKS
    assert {key: failure(checks[key], PLACEMENTS[name]) for key in checks} == dict.fromkeys(checks)


class OnTheSum(Placement):
    norms = (SUM,)


class WithoutCross(OnTheSum):
    """Has a weight for two of the three branches."""

    def __init__(self, place):
        super().__init__(place)
        self.scale = torch.nn.ParameterDict(
            {branch: torch.nn.Parameter(torch.ones(())) for branch in ("self", "ffn")}
        )

    def join(self, x, fx, branch):
        return x + self.scale[branch] * fx


class Dropping(OnTheSum):
    """Loses a branch."""

    def join(self, x, fx, branch):
        return x if branch == "ffn" else x + fx


class Detaching(OnTheSum):
    """Has a parameter that no gradient reaches."""

    def __init__(self, place):
        super().__init__(place)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def join(self, x, fx, branch):
        return x + self.scale.detach() * fx


class LeakingPlacement(OnTheSum):
    """Adds a mean over positions."""

    def join(self, x, fx, branch):
        return x + fx + fx.mean(0, keepdim=True)


class Forgetful(OnTheSum):
    """Measures something that no state dict holds."""

    def __init__(self, place):
        super().__init__(place)
        self.size = None

    def join(self, x, fx, branch):
        self.size = self.size or x.detach().abs().mean().item()
        return 5 * x / self.size + fx


class Narrowing(OnTheSum):
    """Gives another shape."""

    def end(self, x):
        return torch.cat([x, x], dim=0)


@pytest.mark.parametrize(
    ("cls", "check_name", "fault"),
    [
        (
            WithoutCross,
            "branches",
            "attribute 'cross') in a decoder, whose layers have the branches self, cross",
        ),
        (Narrowing, "branches", "an encoder: input shape (5, 3, 24), output shape (80, 3, 24)"),
        (Dropping, "gradient", "an encoder: branch ffn of layer 1 has no gradient"),
        (Detaching, "gradient", "an encoder: its parameter scale has no gradient"),
        (LeakingPlacement, "positions", "one position changes the output at others"),
        (Forgetful, "state", "after loading a state dict, the next step differs"),
    ],
)
def test_each_check_of_placements_finds_its_fault(cls, check_name, fault):
    assert fault in failure(placements.CHECKS[check_name], cls)
