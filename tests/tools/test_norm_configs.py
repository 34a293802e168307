"""tools/norm_configs.py: each norm has its file in configs/norm/."""

from __future__ import annotations

from norm_configs import norm_config, stale_configs, write_configs
from norm_plugin.experiments.recipes import CONFIGS
from norm_plugin.norms import NORM_TYPES


def test_the_files_of_the_norms_are_fresh():
    assert not stale_configs(CONFIGS / "norm"), "run python tools/norm_configs.py"
    assert len(list((CONFIGS / "norm").glob("*.yaml"))) == len(NORM_TYPES)


def test_stale_files_are_written_anew(tmp_path):
    write_configs(stale_configs(tmp_path))
    assert stale_configs(tmp_path) == {}
    (tmp_path / "rmsnorm.yaml").write_text("norm_type: layernorm\n")
    (tmp_path / "none.yaml").unlink()
    (tmp_path / "gone.yaml").write_text("norm_type: gone\n")
    stale = stale_configs(tmp_path)
    assert {path.stem for path in stale} == {"rmsnorm", "none", "gone"}
    write_configs(stale)
    assert (tmp_path / "rmsnorm.yaml").read_text() == norm_config("rmsnorm")
    assert not (tmp_path / "gone.yaml").exists()
