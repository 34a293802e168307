"""The figures of the report: what they draw, as data."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest

from made_up_results import folder_of, level, made_up, with_statistics, write_failure
from norm_lab.report.curves import (
    Panel,
    curve_differences,
    curves_in_panels,
    interval_of_means,
    panels,
)
from norm_lab.report.figure import (
    COLORS,
    FIGURES,
    INK,
    MOST_LINES,
    SECTIONS,
    legend_below,
    legend_height,
    outliers,
    styles_by_arm,
)
from norm_lab.report.figures import SETTING_CURVES, sensitivity_figure
from norm_lab.report.records import (
    MOST_PLACES,
    RECORDED,
    Recorded,
    drawn_places,
    recorded,
    short_place,
    values_of,
)
from norm_lab.study.study import read_study
from norm_lab.study.tuning import Tuned
from norm_plugin.models.recording import LEVELS

QUANTILES = [0.1 * (1 + place) for place in range(len(LEVELS))]
SITE = "encoder.layers.0.final_layer_norm"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two seeds with a record of one setting, one of another, and one without."""
    folder = tmp_path_factory.mktemp("results")
    runs = [
        with_statistics(made_up(seed=seed), g_mu=value, gamma_over_psi=QUANTILES)
        for seed, value in ((1, 1.0), (2, 3.0))
    ]
    runs.append(with_statistics(made_up("other"), g_mu=0.0, distance_mean=0.5))
    runs.append(made_up("none"))
    return read_study(folder_of(folder, *runs))


def test_each_section_of_the_page_has_figures():
    assert {section for section, _ in FIGURES.values()} == set(SECTIONS)


def drawn(study, name):
    return FIGURES[name][1](study)


def axes_of(figure):
    """The panels with what is drawn in them, row by row."""
    import matplotlib.figure  # as figures.py does, where it draws

    whole = matplotlib.figure.Figure()
    grid = whole.subplots(*(figure.grid or (1, 1)), squeeze=False, **figure.options)
    figure.plot(grid if figure.grid else grid[0, 0])
    return grid


def test_a_line_is_the_mean_over_seeds(study):
    figure = drawn(study, "powernorm-3")
    columns = ["arm", "value", "update", SITE]
    assert list(figure.data) == columns  # PowerNorm's figures show the encoder
    assert list(figure.data.itertuples(index=False, name=None)) == [
        ("layernorm", "g_mu", 1, 2.0),
        ("layernorm", "g_mu", 11, 2.0),
        ("other", "g_mu", 1, 0.0),
        ("other", "g_mu", 11, 0.0),
    ]
    ElementTree.fromstring(figure.standalone)
    assert ">other<" in figure.svg and ">none<" not in figure.svg


def test_a_figure_without_data_is_none(study, tmp_path):
    assert drawn(study, "powernorm-4") is None
    without = read_study(folder_of(tmp_path, made_up()))
    assert recorded(without.runs, RECORDED["layers"]).empty
    assert all(drawn(without, name) is None for name in (*RECORDED, *SETTING_CURVES, "spectrum"))


def test_only_updates_that_all_records_have_are_averaged(tmp_path):
    """A value that was not finite is no point, and so no mean of its arm either."""
    runs = [
        with_statistics(made_up(seed=seed), updates, g_mu=1.0 * seed)
        for seed, updates in ((1, (1, 11, 21)), (2, (1, 11)))
    ]
    data = drawn(read_study(folder_of(tmp_path, *runs)), "powernorm-3").data
    assert list(data["update"]) == [1, 11] and set(data[SITE]) == {1.5}


def test_the_places_reach_from_the_first_to_the_last():
    sites = {f"encoder.layers.{i}.final_layer_norm": {"g_mu": [1.0]} for i in range(9)}
    values = values_of({"updates": [1], "sites": sites}, ["g_mu"])
    places = drawn_places(values, RECORDED["powernorm-3"])
    assert len(places) == MOST_PLACES
    assert (places[0], places[-1]) == tuple(sites)[:: len(sites) - 1]
    # a model without an encoder is drawn all the same
    assert drawn_places(values, Recorded("", "sites", ("g_mu",), stack="decoder")) == places


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


def test_more_than_six_arms_have_further_rows(tmp_path):
    """Each arm once, beside the baseline, in the color and dash that the legend has for it."""
    arms = {"layernorm": 0.0, **{f"a{i}": 1.0 + i for i in range(MOST_LINES)}}
    runs = [with_statistics(made_up(norm), g_mu=value) for norm, value in arms.items()]
    grid = axes_of(drawn(read_study(folder_of(tmp_path, *runs)), "powernorm-3"))
    rows = [[line.get_ydata()[0] for line in axes.lines] for axes in grid[:, 0]]
    assert rows == [[0, 1, 2, 3, 4, 5], [0, 6]]
    (legend,) = grid[0, 0].figure.legends
    assert [text.get_text() for text in legend.texts] == list(arms)
    looks = {norm: look(line) for norm, line in zip(arms.values(), legend.get_lines())}
    drawn_lines = [line for axes in grid.flat for line in axes.lines]
    assert {(line.get_ydata()[0], look(line)) for line in drawn_lines} == set(looks.items())
    assert len(set(looks.values())) == len(arms)


def look(line):
    return line.get_color(), line.get_linestyle()


def test_the_spectrum_is_the_mean_of_normalized_values(study):
    data = drawn(study, "spectrum").data
    spectrum = data[data["arm"] == "layernorm"][["side", "index", "normalized"]]
    rows = [("shared", 1, "1"), ("shared", 2, "0.25")]
    assert list(spectrum.itertuples(index=False, name=None)) == rows


SHORTER = {"optimization.max_update": 750}


def batch_run(label, bleu, tokens=None, seed=1):
    """A run of batchnorm of 750 updates; every batch has 4,096 tokens."""
    model = {"norm_placement": "pre", "norm_type": "batchnorm", "norm_ghost_batch_tokens": tokens}
    differs = {} if tokens is None else {"model.norm_ghost_batch_tokens": tokens}
    dataset = {"max_tokens": 4096}
    result = made_up(label, seed, bleu, settings__model=model, settings__dataset=dataset)
    return {**result, "differs": {**differs, **SHORTER}}


def test_a_norm_is_a_line_over_the_batches_of_its_statistics(tmp_path):
    runs = [
        batch_run("batchnorm", 35.0),
        batch_run("batchnorm-ghost-batch-tokens-512", 33.0, 512),
        batch_run("batchnorm-ghost-batch-tokens-512", 34.0, 512, seed=2),
        batch_run("batchnorm-ghost-batch-tokens-1024", 34.5, 1024),
        {**made_up(settings__dataset={"max_tokens": 4096}), "differs": SHORTER},
    ]
    data = drawn(read_study(folder_of(tmp_path, *runs)), "stat-tokens").data
    rows = data[["arm", "value", "seeds", "mean"]].itertuples(index=False, name=None)
    assert list(rows) == [
        ("batchnorm", 512, 2, 33.5),
        ("batchnorm", 1024, 1, 34.5),
        ("batchnorm", 4096, 1, 35.0),
    ]
    assert data["low"].iloc[0] < 33.5 < data["high"].iloc[0] and data["low"].isna().iloc[1]


def test_a_label_of_an_arm_does_not_change_its_line(tmp_path):
    few = [
        batch_run("batchnorm-ghost-batch-tokens-512", 33.0 + seed, 512, seed=seed)
        for seed in (1, 2)
    ]
    folder = folder_of(tmp_path, *few, batch_run("batchnorm", 35.0))
    labels = {"batchnorm-ghost-batch-tokens-512": "small batches"}
    data = drawn(read_study(folder, "batchnorm", labels), "stat-tokens").data
    assert list(zip(data["arm"], data["value"])) == [("batchnorm", n) for n in (512, 4096)]


def test_an_arm_far_from_the_others_has_a_scale_of_its_own():
    sizes = {"a": 0.1, "b": 0.05, "c": 0.0, "d": 0.2, "e": 0.9}
    assert outliers(sizes) == ["e"]
    assert outliers({**sizes, "e": 0.59}) == []
    assert outliers({"a": 0.0, "b": 5.0}) == []  # of two, neither is the rule


def test_a_panel_has_at_most_six_lines():
    """The baseline is one of them; more arms have a panel each."""
    few = {f"a{i}, pre": f"a{i}" for i in range(MOST_LINES - 1)}
    both = {"pre": few, "post": {"b, post": "b"}}
    assert [(p.title, len(p.names)) for p in panels(both)] == [("pre", 5), ("b, post", 1)]
    labeled = {"pre": few, "post": {"post-norm, deep": "post-norm, deep"}}
    assert [p.title for p in panels(labeled)] == ["pre", "post-norm, deep"]
    apart = panels(both, out=["b, post", "a0, pre"])
    assert [(p.title, p.own_scale) for p in apart] == [
        ("pre", False),
        ("a0, pre", True),
        ("b, post", True),
    ]
    many = panels({"pre": {**few, "a9, pre": "a9"}})
    assert [p.title for p in many] == [f"a{i}" for i in (0, 1, 2, 3, 4, 9)]


def points(*losses, arm="a"):
    """A point of each seed, from 1."""
    rows = [(arm, seed, 1, 0, 10 * seed, loss) for seed, loss in enumerate(losses, start=1)]
    return pd.DataFrame(rows, columns=["arm", "seed", "epoch", "number", "x", "loss"])


@pytest.mark.parametrize(
    ("losses", "band"),
    [
        ((1.0, 2.0, 3.0), (2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5)),  # t with 2 degrees
        ((1.0, 2.0), (1.0, 2.0)),
        ((2.0,), (None, None)),
    ],
)
def test_the_band_is_the_interval_of_the_mean(losses, band):
    (row,) = interval_of_means(points(*losses), ["arm", "epoch"], "loss").to_dict("records")
    assert row["mean"] == pytest.approx(sum(losses) / len(losses))
    assert row["x"] == 5 * (1 + len(losses))  # where each seed has another split
    if len(losses) == 1:
        assert pd.isna(row["low"]) and pd.isna(row["high"])
    else:
        assert (row["low"], row["high"]) == pytest.approx(band)


def test_the_band_over_random_splits_is_wider():
    (row,) = interval_of_means(points(1.0, 2.0, 3.0), ["arm"], "loss", 1 / 8).to_dict("records")
    half = 4.302653 * (1 / 3 + 1 / 8) ** 0.5
    assert (row["low"], row["high"]) == pytest.approx((2 - half, 2 + half))


def test_curves_are_paired_by_seed():
    """Where every seed of the arm was measured."""
    ours, theirs = points(3.0, 5.0, 9.0), points(1.0, 4.0, arm="base")
    second = ours.iloc[:1].assign(number=1)
    table = pd.concat([ours.iloc[:2], second, theirs, theirs.assign(number=1)])
    (row,) = curve_differences(table, [("base", "base"), ("a", "base")]).to_dict("records")
    assert (row["arm"], row["number"], row["mean"], row["seeds"]) == ("a", 0, 1.5, 2)
    assert (row["low"], row["high"]) == (1.0, 2.0)


def curves_of(*losses, subset="valid", length=30):
    points = [{"epoch": e, "updates": e * length, "loss": x} for e, x in enumerate(losses, 1)]
    return {"train": [], "valid": [], subset: points}


def test_curves_of_seeds_with_epochs_of_other_lengths_are_matched_by_epoch(tmp_path):
    """The epochs of seeds differ in length on a corpus that each seed splits at random."""
    runs = [
        made_up(seed=seed, curves=curves_of(9.0 - seed, 8.0 - seed, 7.0 - seed, length=length))
        for seed, length in ((1, 30), (2, 32))
    ]
    data = drawn(read_study(folder_of(tmp_path, *runs)), "valid-loss").data
    rows = data[["updates", "mean", "low", "high"]].itertuples(index=False, name=None)
    assert list(rows) == [(31, 7.5, 7, 8), (62, 6.5, 6, 7), (93, 5.5, 5, 6)]


def test_a_loss_that_was_not_finite_shifts_no_pair(tmp_path):
    runs = [
        made_up(norm, curves={"train": [], "valid": [{"epoch": 1, **point} for point in points]})
        for norm, points in {
            "layernorm": [{"updates": 10 * i, "loss": 9.0 - i} for i in (1, 2, 3, 4)],
            "other": [{"updates": 10 * i, "loss": 9.5 - i} for i in (1, 2, 3, 4)],
        }.items()
    ]
    del runs[1]["curves"]["valid"][1]["loss"]
    data = drawn(read_study(folder_of(tmp_path, *runs)), "valid-difference").data
    assert list(zip(data["updates"], data["mean"])) == [(10, 0.5), (30, 0.5), (40, 0.5)]


def test_a_curve_of_two_points_is_not_drawn(tmp_path):
    """And the training loss is drawn where it was logged most often."""
    two, three = curves_of(9.0, 8.0, subset="train"), curves_of(9.0, 8.0, 7.0, subset="train_inner")
    folders = folder_of(tmp_path, made_up(curves=two))
    assert drawn(read_study(folders), "train-loss") is None
    folders = folder_of(tmp_path, made_up(curves={**two, **three, "train": two["train"]}))
    assert list(drawn(read_study(folders), "train-loss").data["mean"]) == [9.0, 8.0, 7.0]


def test_the_forest_plot_has_an_arm_a_row(tmp_path):
    runs = [
        made_up(f"{norm}{end}", seed, bleu, placement=placement)
        for placement, end in (("pre", ""), ("post", "-post"))
        for norm, bleu in (("layernorm", 35.0), ("a", 35.5), ("b", 34.0), ("far", 3.0))
        for seed in (1, 2)
    ]
    figure = drawn(read_study(folder_of(tmp_path, *runs)), "differences")
    rows = figure.data[["group", "arm", "mean"]].itertuples(index=False, name=None)
    assert [row for row in rows if row[0] == "pre"] == [
        ("pre", "a, pre", 0.5),
        ("pre", "b, pre", -1.0),
        ("pre", "far, pre", -32.0),
    ]
    assert list(figure.data["group"]) == ["pre"] * 3 + ["post"] * 4
    assert figure.svg.count("own scale") == 1
    left, right = axes_of(figure)[0]
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels[:5] == ["pre", "a", "b", "far", "post"]  # under the heading of its placement
    marks = [line for axes in (left, right) for line in axes.lines if line.get_marker() == "D"]
    places = sorted((round(line.get_ydata()[0]), line.get_xdata()[0]) for line in marks)
    assert places[:3] == [(1, 0.5), (2, -1.0), (3, -32.0)]


def test_the_figure_of_sensitivity_marks_what_was_chosen(study):
    arm = study.baseline
    rows = [(arm, 0.1, seed, 2.0 + seed) for seed in (1, 2)]
    rows += [(arm, 1.0, seed, 3.0 + seed) for seed in (1, 2)]
    rows.append((arm, 10.0, 1, math.inf))
    trials = pd.DataFrame(rows, columns=["arm", "lr", "seed", "valid_loss"])
    figure = sensitivity_figure(study, Tuned("rate", trials, {arm: 0.1}, ""))
    assert list(figure.data["lr"]) == [0.1, 1.0] and list(figure.data["mean"]) == [3.5, 4.5]
    ElementTree.fromstring(figure.standalone)
    assert figure.pdf.startswith(b"%PDF")


def test_a_failed_run_of_the_baseline_is_in_the_first_panel(tmp_path):
    points = [{"updates": update, "epoch": 1, "loss": 9.0 - update} for update in (1, 2, 3)]
    curves = {"train": [], "valid": points}
    (folder,) = folder_of(tmp_path, made_up(curves=curves), made_up("other", curves=curves))
    write_failure(folder, "layernorm", 2, curves=curves)
    first, *others = axes_of(drawn(read_study([folder]), "valid-loss")).flat
    assert [text.get_text().strip() for text in first.texts] == ["seed 2 diverged"]
    assert not any(axes.texts for axes in others)


def test_the_scale_leaves_the_first_losses_out():
    lines = pd.DataFrame({"arm": "a", "x": [1, 5, 10], "mean": [9.0, 2.0, 1.0]})
    lines = lines.assign(low=lines["mean"], high=lines["mean"])
    shown = [Panel("", {"a": "a"})]
    more = ("updates", "loss"), {"a": {"color": "black"}}
    whole, late = (
        axes_of(curves_in_panels("n", "t", lines, lines, shown, *more, settled=share))[0, 0]
        for share in (0.0, 0.5)
    )
    assert whole.get_ylim() == pytest.approx((0.6, 9.4))  # 5 % of the range at each end
    assert late.get_ylim() == pytest.approx((0.95, 2.05))


def test_an_arm_has_one_color_in_all_figures(tmp_path):
    """The baseline has that of the text; an arm under another placement that of its norm."""
    runs = [
        made_up(norm, seed, 35.0 + seed, placement=placement, curves=curve)
        for curve in [{"train": [], "valid": level(8.0)}]
        for placement in ("pre", "post")
        for norm in ("layernorm", "a", "b")
        for seed in (1, 2)
    ]
    study = read_study(folder_of(tmp_path, *runs))
    colors = {arm: line_style["color"] for arm, line_style in styles_by_arm(study).items()}
    assert colors["layernorm, pre"] == colors["layernorm, post"] == INK
    assert colors["a, pre"] == colors["a, post"] == COLORS[0] and colors["b, pre"] == COLORS[1]
    curves = {line.get_color() for line in axes_of(drawn(study, "valid-loss"))[0, 0].lines}
    assert curves == {INK, *COLORS[:2]}
    (forest,) = axes_of(drawn(study, "scores"))[0]
    seeds = [line.get_color() for line in forest.lines if line.get_marker() == "o"]
    arms = sorted(study.arms, key=lambda arm: study.placements[arm] == "post")
    assert seeds == [colors[arm] for arm in arms for _ in range(2)]
    points = axes_of(drawn(study, "speed"))[0, 0]
    looks = {(line.get_color(), line.get_marker()) for line in points.lines}
    assert {color for color, _ in looks} == curves and len(looks) == 6


def test_a_legend_has_every_name():
    import matplotlib.figure

    axes = matplotlib.figure.Figure().subplots()
    for name in ("rmsnorm", "_rmsnorm"):
        axes.plot([1, 2], label=name)
    axes.axhline(1)  # without a name
    legend_below(axes)
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.texts] == ["rmsnorm", "_rmsnorm"]


def test_a_legend_has_the_columns_that_fit(study):
    short, long = ["layernorm"] * 3, ["layernorm-" * 12] * 3
    assert legend_height(long) == pytest.approx(0.1 + 3 * 0.2)  # a row of 0.2 inches for each
    assert legend_height(short) == pytest.approx(0.1 + 0.2)
    assert drawn(study, "spectrum").height > 3.4  # of the axes
