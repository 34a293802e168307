"""The figures of the report: what they draw, as data."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from made_up_results import folder_of, made_up, with_statistics
from norm_plugin.analysis.figures import FIGURES
from norm_plugin.analysis.records import (
    MOST_PLACES,
    RECORDED,
    Recorded,
    drawn_places,
    recorded,
    short_place,
    short_value,
    values_of,
)
from norm_plugin.analysis.study import read_study
from norm_plugin.models.recording import LEVELS

QUANTILES = [0.1 * (1 + place) for place in range(len(LEVELS))]
SITE = "encoder.layers.0.final_layer_norm"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds with a record of one setting, one of another, and one without."""
    folder = tmp_path_factory.mktemp("results")
    runs = [
        with_statistics(made_up(seed=seed), folder, g_mu=value, gamma_over_psi=QUANTILES)
        for seed, value in ((1, 1.0), (2, 3.0))
    ]
    runs.append(with_statistics(made_up("other"), folder, g_mu=0.0, distance_mean=0.5))
    runs.append(made_up("none"))
    return read_study(folder_of(folder, *runs))


def drawn(study, name):
    return FIGURES[name][1](study)


def test_a_line_is_the_mean_over_seeds(study):
    figure = drawn(study, "powernorm-3")
    columns = ["arm", "value", "update", SITE]
    assert list(figure.data) == columns  # PowerNorm's figures show the encoder
    assert list(figure.data.itertuples(index=False, name=None)) == [
        ("layernorm, pre", "g_mu", 1, 2.0),
        ("layernorm, pre", "g_mu", 11, 2.0),
        ("other, pre", "g_mu", 1, 0.0),
        ("other, pre", "g_mu", 11, 0.0),
    ]
    ElementTree.fromstring(figure.standalone)
    assert "other, pre" in figure.svg and "none, pre" not in figure.svg


def test_values_over_channels_are_drawn_at_some_quantiles(study):
    found = set(drawn(study, "powernorm-7").data["value"])
    assert found == {f"gamma_over_psi_{level}" for level in ("0.05", "0.5", "0.95")}


def test_a_value_that_some_settings_lack_is_drawn_for_the_others(study):
    assert set(drawn(study, "powernorm-2").data["arm"]) == {"other, pre"}


def test_layers_are_drawn_too(study):
    assert list(drawn(study, "layers").data["encoder.layers.0"])[:2] == [1.0, 11.0]


def test_a_figure_without_data_is_none(study, tmp_path):
    assert drawn(study, "outliers") is None
    without = read_study(folder_of(tmp_path, made_up()))
    assert recorded(without.runs, RECORDED["layers"]).empty
    assert all(drawn(without, name) is None for name in (*RECORDED, "spectrum", "stat-tokens"))


def test_only_updates_that_all_records_have_are_averaged(tmp_path):
    """A value that was not finite is no point, and so no mean of its arm either."""
    runs = [
        with_statistics(made_up(seed=seed), tmp_path, updates, g_mu=1.0 * seed)
        for seed, updates in ((1, (1, 11, 21)), (2, (1, 11)))
    ]
    data = drawn(read_study(folder_of(tmp_path, *runs)), "powernorm-3").data
    assert list(data["update"]) == [1, 11] and set(data[SITE]) == {1.5}


def test_a_quantile_that_was_not_finite_is_no_point():
    columns = {"gamma_over_psi": [QUANTILES, [*QUANTILES[:-1], None], None]}
    values = values_of({"updates": [1, 11, 21], "sites": {"a": columns}}, ["gamma_over_psi"])
    assert list(values["update"]) == [1, 11]
    assert values["gamma_over_psi_1"].isna().tolist() == [False, True]


def test_the_places_reach_from_the_first_to_the_last():
    sites = {f"encoder.layers.{i}.final_layer_norm": {"g_mu": [1.0]} for i in range(9)}
    values = values_of({"updates": [1], "sites": sites}, ["g_mu"])
    found = drawn_places(values, RECORDED["powernorm-3"])
    assert len(found) == MOST_PLACES
    assert (found[0], found[-1]) == tuple(sites)[:: len(sites) - 1]
    # a model without an encoder is drawn all the same
    assert drawn_places(values, Recorded("", "sites", ("g_mu",), stack="decoder")) == found


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("encoder.layers.0.self_attn_layer_norm", "encoder 1 self"),
        ("decoder.layers.3.encoder_attn_layer_norm", "decoder 4 cross"),
        ("encoder.layer_norm", "encoder final"),
        ("decoder.layers.1", "decoder 2"),
    ],
)
def test_a_place_has_a_short_name(path, short):
    assert short_place(path) == short


def test_a_value_has_a_short_name():
    assert short_value("gamma_over_psi_0.05") == "gamma_over_psi\n5% quantile"
    assert short_value("distance_mean") == "distance,\nmean"


def test_the_spectrum_is_the_mean_of_normalized_values(study):
    data = drawn(study, "spectrum").data
    found = data[data["arm"] == "layernorm, pre"][["side", "index", "normalized"]]
    rows = [("shared", 1, "1"), ("shared", 2, "0.25")]
    assert list(found.itertuples(index=False, name=None)) == rows


def batch_run(label, bleu, tokens=None, seed=1):
    """A run of batchnorm; every batch has 4,096 tokens."""
    model = {"norm_placement": "pre", "norm_type": "batchnorm", "norm_stat_tokens": tokens}
    differs = {} if tokens is None else {"model.norm_stat_tokens": tokens}
    dataset = {"max_tokens": 4096}
    result = made_up(label, seed, bleu, settings__model=model, settings__dataset=dataset)
    return {**result, "differs": differs}


def test_a_norm_is_a_line_over_the_batches_of_its_statistics(tmp_path):
    runs = [
        batch_run("batchnorm", 35.0),
        batch_run("batchnorm-stat-tokens-512", 33.0, 512),
        batch_run("batchnorm-stat-tokens-512", 34.0, 512, seed=2),
        batch_run("batchnorm-stat-tokens-1024", 34.5, 1024),
        made_up(settings__dataset={"max_tokens": 4096}),
    ]
    data = drawn(read_study(folder_of(tmp_path, *runs)), "stat-tokens").data
    rows = data[["setting", "tokens", "seeds", "mean"]].itertuples(index=False, name=None)
    assert list(rows) == [
        ("batchnorm, pre", 512, 2, 33.5),
        ("batchnorm, pre", 1024, 1, 34.5),
        ("batchnorm, pre", 4096, 1, 35.0),
    ]
    assert data["low"].iloc[0] < 33.5 < data["high"].iloc[0] and data["low"].isna().iloc[1]
