"""Recorded statistics as figures: means over seeds, where every record has the value."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ElementTree

import pytest

from made_up_results import folder_of, made_up, with_statistics
from norm_plugin.analysis.record_figures import (
    MOST_SITES,
    drawn_sites,
    drawn_values,
    mean_line,
    record_figure,
    records_of,
    short_place,
)
from norm_plugin.analysis.records import FIGURES, LAYERS, SITES, FigureData, TrainingRecord
from norm_plugin.analysis.spectrum import study_figure
from norm_plugin.analysis.study import read_study
from norm_plugin.models.measures import LEVELS

QUANTILES = [0.1 * (1 + place) for place in range(len(LEVELS))]


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


def rows(figure):
    return list(csv.DictReader(io.StringIO(figure.data)))


def test_a_line_is_the_mean_over_seeds(study):
    figure = record_figure(study, "powernorm-3")
    site = "encoder.layers.0.final_layer_norm"
    found = [(row["setting"], row["value"], row["update"], row[site]) for row in rows(figure)]
    assert found == [
        ("layernorm, pre", "g_mu", "1", "2"),
        ("layernorm, pre", "g_mu", "11", "2"),
        ("other, pre", "g_mu", "1", "0"),
        ("other, pre", "g_mu", "11", "0"),
    ]
    ElementTree.fromstring(figure.standalone)
    assert "other, pre" in figure.svg and "none, pre" not in figure.svg


def test_the_figures_of_powernorm_show_the_encoder(study):
    assert not any("decoder" in name for name in record_figure(study, "powernorm-3").header)


def test_values_over_channels_are_drawn_at_some_quantiles(study):
    found = {row["value"] for row in rows(record_figure(study, "powernorm-7"))}
    assert found == {f"gamma_over_psi_{level}" for level in ("0.05", "0.5", "0.95")}


def test_a_value_that_some_settings_lack_is_drawn_for_the_others(study):
    assert {row["setting"] for row in rows(record_figure(study, "powernorm-2"))} == {"other, pre"}


def test_a_figure_without_data_is_none(study):
    assert record_figure(study, "outliers") is None


def test_layers_are_drawn_too(study):
    found = rows(record_figure(study, "layers"))
    assert [row["encoder.layers.0"] for row in found][:2] == ["1", "11"]


def test_only_updates_that_all_records_have_are_averaged():
    records = [
        TrainingRecord(None, "", 10, {}, [{"update": u, SITES: {"a": {"g": v}}} for u, v in line])
        for line in ([(1, 1.0), (11, 2.0), (21, 9.0)], [(1, 3.0), (11, 4.0)])
    ]
    assert mean_line(records, SITES, "a", ("g", None)) == {1: 2.0, 11: 3.0}
    assert mean_line([], SITES, "a", ("g", None)) == {}


def test_a_quantile_that_was_not_finite_is_no_point():
    kept = [(1, [0.1, 0.5]), (11, [0.1, None]), (21, None)]
    updates = [{"update": update, SITES: {"a": {"g": found}}} for update, found in kept]
    record = TrainingRecord(None, "", 10, {}, updates)
    assert mean_line([record, record], SITES, "a", ("g", 0)) == {1: 0.1, 11: 0.1}
    assert mean_line([record, record], SITES, "a", ("g", 1)) == {1: 0.5}


def test_the_sites_reach_from_the_first_to_the_last():
    sites = {f"encoder.layers.{i}.final_layer_norm": {"g_mu": 1.0} for i in range(9)}
    record = TrainingRecord(None, "", 10, {}, [{"update": 1, SITES: sites, LAYERS: {}}])
    found = drawn_sites([record], FIGURES["powernorm-3"])
    assert len(found) == MOST_SITES
    assert (found[0], found[-1]) == tuple(sites)[:: len(sites) - 1]
    # a model without an encoder is drawn all the same
    alone = FigureData("", SITES, ("g_mu",), stack="decoder")
    assert drawn_sites([record], alone) == found


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_values(name):
    values = drawn_values(FIGURES[name])
    assert {value for value, _ in values} == set(FIGURES[name].names)


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


def test_the_spectrum_is_the_mean_of_normalized_values(study):
    found = [row for row in rows(study_figure(study)) if row["setting"] == "layernorm, pre"]
    assert [(row["side"], row["index"], row["normalized"]) for row in found] == [
        ("shared", "1", "1"),
        ("shared", "2", "0.25"),
    ]


def test_a_study_without_records_has_no_such_figure(tmp_path):
    study = read_study(folder_of(tmp_path, made_up()))
    assert [records_of(setting) for setting in study.settings] == [[]]
    assert study_figure(study) is None
    assert all(record_figure(study, name) is None for name in FIGURES)
