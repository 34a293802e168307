from __future__ import annotations

from made_up_results import folder_of, made_up
from norm_plugin.experiments.results import read_curves, read_results


def test_a_run_is_a_row(tmp_path) -> None:
    curves = {
        "train": [{"epoch": 1, "updates": 9, "loss": 5.0}, {"epoch": 2, "updates": 18, "loss": 4}],
        "valid": [{"epoch": 1, "updates": 9, "loss": 3.0}, {"epoch": 2, "updates": 18, "loss": 4}],
    }
    split = {"data__settings": {"split_seed": 7}, "differs": {"model.norm_variant": "released"}}
    folders = folder_of(
        tmp_path,
        made_up("layernorm", 1, 35.0, curves=curves, settings__optimization={"lr": [0.001]}),
        made_up("rmsnorm", 2, 36.0, placement="post", curves=None, **split),
    )
    runs = read_results(*folders)
    assert list(runs["norm"]) == ["rmsnorm", "layernorm"]  # toy_post stands before toy_pre
    rms, layer = runs.iloc[0], runs.iloc[1]
    assert (layer["score"], layer["valid_loss"], layer["train_loss"]) == (35.0, 3.0, 4.0)
    assert (layer["placement"], rms["placement"]) == ("pre", "post")
    assert layer["settings.optimization.lr"] == [0.001]
    assert rms["split_seed"] == 7
    assert rms["differs"] == {"model.norm_variant": "released"}
    assert rms[["valid_loss", "train_loss"]].isna().all()
    assert layer["commit"] == "0123456789abcdef"
    points = read_curves(*folders)
    assert list(points["subset"]) == ["train", "train", "valid", "valid"]
    assert set(points["norm"]) == {"layernorm"}
