"""tools/norm_configs.py: each norm and each placement has its file in configs/."""

from __future__ import annotations

from norm_configs import GROUPS, norm_config, stale_configs, write_configs
from norm_lab.paths import CONFIGS


def test_the_files_of_the_groups_are_fresh():
    assert not stale_configs(CONFIGS), "run python tools/norm_configs.py"
    for group, (names, _) in GROUPS.items():
        assert {path.stem for path in (CONFIGS / group).glob("*.yaml")} == set(names)


def test_stale_files_are_written_anew(tmp_path):
    write_configs(stale_configs(tmp_path))
    assert stale_configs(tmp_path) == {}
    (tmp_path / "norm/rmsnorm.yaml").write_text("norm_type: layernorm\n")
    (tmp_path / "placement/pre.yaml").unlink()
    (tmp_path / "norm/gone.yaml").write_text("norm_type: gone\n")
    stale = stale_configs(tmp_path)
    assert {path.stem for path in stale} == {"rmsnorm", "pre", "gone"}
    write_configs(stale)
    assert (tmp_path / "norm/rmsnorm.yaml").read_text() == norm_config("rmsnorm")
    assert not (tmp_path / "norm/gone.yaml").exists()
