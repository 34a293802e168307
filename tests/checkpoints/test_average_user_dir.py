"""Running statistics of norms that another ``--user-dir`` registers."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from fairseq.utils import import_user_module
from forked import run_forked
from tiny_run import run_state

from norm_plugin.checkpoints.average import average_checkpoints
from norm_plugin.checkpoints.building import build_model
from norm_plugin.checkpoints.files import load_checkpoint
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.user_dirs import check_user_dir, import_user_dir
from norm_plugin.norms.base import registry as registry

OWN_NORMS = '''
import torch
from norm_plugin.norms import register_norm
from norm_plugin.norms.base.statistics import BatchStatisticsNorm


@register_norm("own", formula="x", paper="none")
class Own(BatchStatisticsNorm):
    """A norm with a running statistic."""

    def __init__(self, dim):
        super().__init__(dim)
        self.register_buffer("height", torch.zeros(dim))

    def normalize(self, x, valid):
        return self.affine(x)
'''
FLAGS = ("--norm-placement=pre", "--norm-type=layernorm")


@contextmanager
def own_norms():
    """The norm above, registered for a while."""
    names = list(registry.NORM_TYPES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_SPECS", dict(registry._SPECS))
        exec(compile(OWN_NORMS, "own_norms", "exec"), {"__name__": "own_norms"})
        yield
    registry.NORM_TYPES[:] = names


def save_runs(folder: Path, data: Path, norm: str, user_dir: Path) -> list[Path]:
    """Two checkpoints, in which the statistic of the encoder's norms is 0.2, and 0.4."""
    paths = []
    for number in (1, 2):
        state = run_state(data, *FLAGS, f"--norm-type-encoder={norm}", updates=number)
        state["cfg"]["common"]["user_dir"] = str(user_dir)
        for name, value in state["model"].items():
            if name.endswith(".height"):
                value.fill_(0.2 * number)
        paths.append(folder / f"{number}.pt")
        torch.save(state, paths[-1])
    return paths


def test_its_norms_are_known(tmp_path, data) -> None:
    plugin = tmp_path / "own_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(OWN_NORMS)
    with own_norms():
        paths = save_runs(tmp_path, data, "own", plugin)
    argv = ["--running-stats", "last"]
    output = tmp_path / "average.pt"
    argv += ["--user-dir", plugin, "--inputs", *paths, "--output", output]
    result = run_forked("norm_plugin", "average", *argv)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.endswith("running statistics are those of update 2\n")
    model = load_checkpoint(output)["model"]
    heights = [value for name, value in model.items() if name.endswith(".height")]
    assert len(heights) == 3
    assert all(torch.allclose(value, torch.tensor(0.4)) for value in heights)


def test_a_user_dir_that_is_gone(tmp_path, data) -> None:
    path = tmp_path / "run.pt"
    state = run_state(data)
    state["cfg"]["common"]["user_dir"] = "/nowhere/theirs"
    torch.save(state, path)
    with pytest.raises(CommandError, match="add --user-dir /nowhere/theirs, or the folder's"):
        build_model(path)
    with pytest.raises(CommandError, match="cannot import --user-dir /nowhere/theirs"):
        import_user_dir(Path("/nowhere/theirs"))


@pytest.mark.parametrize("number", [0, 1])
def test_a_user_dir_that_the_comparison_of_norms_needs(tmp_path, data, number) -> None:
    paths = [tmp_path / "0.pt", tmp_path / "1.pt"]
    for updates, path in enumerate(paths):
        state = run_state(data, *FLAGS, f"--norm-eps=1e-{5 + updates}", updates=updates)
        if updates == number:
            state["cfg"]["common"]["user_dir"] = "/nowhere/theirs"
        torch.save(state, path)
    with pytest.raises(CommandError, match=rf"{number}\.pt was trained with --user-dir /nowhere"):
        average_checkpoints(paths)


def test_a_user_dir_and_this_plugin_may_lie_elsewhere_now(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(import_user_module, "memo", {"/here/now/theirs"}, raising=False)
    import_user_dir(Path("/nowhere/norm_plugin"))
    for user_dir in ("/nowhere/theirs", "/nowhere/norm_plugin", None):
        check_user_dir({"cfg": {"common": {"user_dir": user_dir}}}, tmp_path)
    check_user_dir({"model": {}}, tmp_path)
    with pytest.raises(CommandError, match="common.user_dir"):
        check_user_dir({"cfg": {"common": {"user_dir": "/nowhere/others"}}}, tmp_path)
