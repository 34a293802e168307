#!/usr/bin/env python3
"""Draw the figures of docs/findings.md from the committed results.

    python tools/findings.py

tools/docs.py writes the tables of the same comparisons.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.config.studies import (
    EQUIVALENCE,
    MINUS,
    SCORE,
    read_study_file,
    study_path,
    terms,
)
from norm_lab.report.figure import INK, SMALL, Figure
from norm_lab.report.forest import draw_row
from norm_lab.report.tables import table_markdown, tables_of
from norm_lab.report.text import formatted, markdown, outcome_title
from norm_lab.study.comparisons import compare_arms, higher_is_better
from norm_lab.study.significance import Verdict
from norm_lab.study.study import Study, read_study
from norm_plugin.io.command_line import run_command
from norm_plugin.io.files import write_text

ROOT = Path(__file__).resolve().parents[1]
BOTH = (SCORE, "valid_loss")
RESULTS = {
    "characters": "tinyshakespeare_short",
    "adanorm_rt": "rt",
    "adanorm_sst5": "sst5",
    "warmup": "warmup/multi30k_cpu",
}
"""The folder of a study's results, if it does not have the name of the study."""
CORPORA = {
    "characters": "characters",
    "characters_tuned_short": "characters, own rates",
    "characters_tuned_post": "characters, own rates",
    "characters_powernorm": "characters, own rates",
    "adanorm_rt": "RT",
    "adanorm_sst5": "SST5",
    "sst5_confirmed": "SST5, new seeds",
    "multi30k_cpu": "Multi30k",
    "multi30k_powernorm": "Multi30k, 17 seeds",
    "table1_small": "Multi30k, seeds 31 to 40",
    "multi30k_batchnorm": "Multi30k, own rates",
    "warmup_confirmed": "Multi30k, new seeds",
    "warmup_published": "Multi30k, rate 0.001",
    "stat_tokens": "characters, large batches",
    "stat_tokens_wide": "characters, nanoGPT's start",
    "depth": "characters",
    "no_layer_scale": "characters, nanoGPT's start",
    "adanorm_scale": "SST5, seeds 31 to 50",
    "depth_uncensored": "characters, nanoGPT's start",
    "derivatives_depth": "characters",
    "tensorized_small": "characters, tensorized",
    "characters_fair": "characters, nanoGPT's start, own rates",
    "transformer_xl_characters": "characters, Transformer-XL",
}


def with_placement(side: str) -> str:
    """Return the full name of an arm, or of a difference of two; pre-norm if it names none."""
    return MINUS.join(name if ", " in name else f"{name}, pre" for name in terms(side))


class Effect(NamedTuple):
    """A comparison, ``arm`` minus ``baseline``; pre-norm if they name no placement.

    Each may be the difference of two arms, as in a study file.
    One that is ``off_scale`` would flatten the figure, so it is only in the table.
    """

    study: str
    arm: str
    baseline: str = "layernorm"
    outcome: str = SCORE
    off_scale: bool = False

    @property
    def pair(self) -> tuple[str, str]:
        """The names of arm and baseline in the study, with their placement."""
        return with_placement(self.arm), with_placement(self.baseline)


def effects(
    studies: Sequence[str],
    *pairs: tuple[str, str],
    outcomes: Sequence[str] = (SCORE,),
) -> list[Effect]:
    """Return the effects of the pairs in several studies and outcomes."""
    return [
        Effect(study, *pair, outcome) for outcome in outcomes for pair in pairs for study in studies
    ]


def declared_by(study: str, outcomes: Sequence[str] = (SCORE,)) -> list[Effect]:
    """Return the effects that the file of a study declares, in its order."""
    declared = read_study_file(study_path(study)).primary
    pairs = ((comparison.arm, comparison.baseline) for comparison in declared)
    return effects([study], *pairs, outcomes=outcomes)


def norms_of(study: str, *norms: str, placement: str = "") -> list[Effect]:
    """Return each norm minus LayerNorm."""
    return [Effect(study, norm + placement, "layernorm" + placement) for norm in norms]


CLASSIFICATION = ("adanorm_sst5", "adanorm_rt")
DERIVATIVES = (("detachnorm-std", "detachnorm-mean"), ("detachnorm", "layernorm-simple"))
"""Norms without the derivative of the deviation against that of the mean, and without both."""
LEAKING = ("batchnorm", "powernorm-v")
"""Norms that take the statistics of the batch throughout training."""
WITHOUT_WARMUP = "layernorm-warmup-init-lr-0.005, pre"
FINDINGS = {
    "norms": [
        *norms_of("characters_fair", "none", "rmsnorm", "powernorm"),
        *norms_of("characters_tuned_short", "none", "powernorm", "dyt"),
        *norms_of("characters_tuned_post", "rmsnorm", "powernorm", placement=", post"),
        Effect("characters_tuned_post", "dyt, post", "layernorm, post", off_scale=True),
        *norms_of("characters", "none", "rmsnorm", "powernorm", "adanorm"),
        *norms_of("characters", "rmsnorm", "powernorm", "adanorm", placement=", post"),
    ],
    "translation": [
        *declared_by("multi30k_powernorm", BOTH),
        *declared_by("table1_small", BOTH),
        *declared_by("multi30k_batchnorm", BOTH),
        Effect("multi30k_cpu", "powernorm"),
    ],
    "powernorm": [
        *declared_by("characters_powernorm"),
        Effect("table1_small", "powernorm-v", "batchnorm"),
        Effect("table1_small", "powernorm-warmup-updates-200", "powernorm-v"),
        Effect("multi30k_cpu", "powernorm", "powernorm-layer-scale-groups-0", off_scale=True),
        Effect("multi30k_cpu", "powernorm-released", "powernorm", off_scale=True),
    ],
    "pre-scaling": effects(
        ["no_layer_scale"],
        *(
            (f"powernorm-layer-scale-groups-{groups}{rate}", f"powernorm{rate}")
            for groups in (0, 4)
            for rate in ("", "-lr-0.004", "-lr-0.016", "-lr-0.064")
        ),
    ),
    "tensorized": declared_by("tensorized_small"),
    "small-batches": [
        *(
            Effect(
                "stat_tokens_wide",
                f"{norm}-stat-tokens-{tokens}",
                baseline.format(norm),
                off_scale=tokens == 64 and norm in LEAKING,
            )
            for baseline, sizes in (
                ("{}-stat-tokens-4096", (64, 512)),
                ("layernorm", (64, 512, 4096)),
            )
            for tokens in sizes
            for norm in (*LEAKING, "powernorm")
        ),
        Effect("stat_tokens", "batchnorm-stat-tokens-256", "batchnorm-stat-tokens-4096"),
        Effect("stat_tokens", "powernorm-stat-tokens-256", "powernorm-stat-tokens-4096"),
        Effect("stat_tokens", "powernorm-stat-tokens-256", "batchnorm-stat-tokens-256"),
    ],
    "adanorm": [
        *effects(
            ["sst5_confirmed"],
            ("adanorm", "layernorm"),
            ("adanorm", "layernorm-kaiming"),
            outcomes=BOTH,
        ),
        *effects(CLASSIFICATION, ("adanorm", "layernorm"), outcomes=BOTH),
        *effects(
            CLASSIFICATION, ("adanorm", "layernorm-kaiming"), ("layernorm-kaiming", "layernorm")
        ),
    ],
    "adanorm-scale": [
        *effects(
            ["adanorm_scale"],
            ("adanorm", "layernorm-kaiming"),
            ("adanorm", "adanorm-k-0"),
            ("adanorm-scale-1", "layernorm-kaiming"),
            outcomes=("valid_loss",),
        ),
        *effects(
            ["adanorm_scale"],
            ("adanorm", "layernorm-kaiming"),
            outcomes=("calibrated_loss", SCORE),
        ),
    ],
    "warmup": [
        *effects(
            ["warmup_confirmed"],
            (WITHOUT_WARMUP, "layernorm, pre"),
            (WITHOUT_WARMUP, "layernorm, post"),
        ),
        Effect(
            "warmup_confirmed",
            "layernorm-post-warmup-init-lr-0.005, post",
            "layernorm, post",
            off_scale=True,
        ),
        *effects(
            ["warmup_published"],
            ("layernorm-post-warmup-updates-1, post", "layernorm, post"),
            ("layernorm-warmup-updates-1, pre", "layernorm, post"),
            ("layernorm-warmup-updates-1, pre", "layernorm-post-warmup-updates-1, post"),
        ),
    ],
    "depth": [
        Effect(
            "depth",
            f"layernorm-{placement}-decoder-layers-{layers}, {placement}",
            f"layernorm-decoder-layers-{layers}, pre",
            off_scale=(placement, layers) == ("post", 24),
        )
        for layers in (24, 12, 6)
        for placement in ("rezero", "deepnorm", "scaled-pre", "post")
    ],
    "depth-uncensored": [
        Effect("depth_uncensored", f"layernorm, {placement}", f"{baseline}, pre")
        for placement, baseline in (
            ("rezero", "none"),
            ("rezero-pre", "layernorm"),
            ("scaled-pre", "layernorm"),
            ("rezero", "layernorm"),
        )
    ],
    "gain-and-bias": effects(CLASSIFICATION, ("layernorm-simple", "layernorm"), outcomes=BOTH),
    "derivatives": effects(
        CLASSIFICATION,
        ("layernorm-simple", "detachnorm"),
        ("detachnorm-mean", "detachnorm-std"),
        outcomes=BOTH,
    ),
    "derivatives-by-depth": effects(
        ["derivatives_depth"],
        *(
            (
                f"{norm}-decoder-layers-24 minus {other}-decoder-layers-24",
                f"{norm}-decoder-layers-6 minus {other}-decoder-layers-6",
            )
            for norm, other in DERIVATIVES
        ),
        *(
            (f"{norm}-decoder-layers-{layers}", f"{other}-decoder-layers-{layers}")
            for norm, other in DERIVATIVES
            for layers in (24, 6)
        ),
    ),
    "transformer-xl": effects(
        ["transformer_xl_characters"],
        ("none, post", "layernorm, post"),
        ("layernorm-simple, post", "layernorm, post"),
        ("adanorm-scale-1, post", "layernorm, post"),
        ("detachnorm, post", "layernorm-simple, post"),
        ("detachnorm-std, post", "detachnorm-mean, post"),
        ("detachnorm, post", "none, post"),
    ),
    "little-data": [
        *effects(["sst5_confirmed"], ("dyt", "layernorm"), outcomes=BOTH),
        *effects(CLASSIFICATION, ("dyt", "layernorm"), ("none", "layernorm"), outcomes=BOTH),
        *norms_of("characters", "dyt", "none"),
    ],
}
"""The comparisons that answer a question, by the name of its block and its figure."""
TESTED = ["difference", "difference_low", "difference_high", "p_holm"]


@cache
def read_named(study: str, results: Path, declared_labels: bool = False) -> Study:
    """Return a study with its declarations, from the committed results; read once for all tables.

    Args:
        declared_labels: name the arms by the labels of the study's file.
    """
    file = read_study_file(study_path(study))
    folders = [results / RESULTS.get(study, study)]
    return read_study(folders, file=file, declared_labels=declared_labels)


def arm_labels(study: str, results: Path) -> dict[str, str]:
    """Return the arms that have a label in the study's file, with their labels."""
    runs = read_named(study, results, declared_labels=True).runs
    arms = dict(zip(runs["id"], runs["arm"]))
    return {arm: label for arm, label in arms.items() if label != arm}


def declared_table(study: str, results: Path) -> str:
    """Return Markdown: what a study declares, with its results, as in its report."""
    return table_markdown(tables_of(read_named(study, results, declared_labels=True))["primary"])


def declared_tests(study: Study, outcome: str) -> pd.DataFrame:
    """Return the declared pairs as one family, also by an outcome that the study does not name."""
    pairs = [
        (each.arm, each.baseline)
        for each in study.primary
        if each.outcome == outcome or each.test != EQUIVALENCE
    ]
    return compare_arms(study.runs, pairs, outcome, study.primary)


def finding_table(name: str, results: Path) -> str:
    """Return Markdown: one row per comparison of a finding, as in :func:`measured`.

    The verdict on a comparison that was not declared before its runs is marked as exploratory.
    """
    rows = measured(results).loc[[name]]
    table = rows[["corpus", "title", "n", "mean", "95 % interval", "p (Holm)", "verdict"]]
    table = table.rename(columns={"title": "outcome"})
    suggested = (rows["family"] == "exploratory") & (rows["verdict"] != Verdict.UNDECIDED)
    table["verdict"] = rows["verdict"].mask(suggested, rows["verdict"] + ", exploratory")
    table.insert(0, "difference", rows.apply(_difference, axis=1))
    table["declared"] = rows["family"].map({"primary": "before", "exploratory": "-"})
    return markdown(table)


def finding_block(name: str, results: Path) -> str:
    """Return Markdown: the figure of a finding, what it omits, and its table."""
    figure = f"![Differences and their 95 % intervals](findings/{name}.svg)"
    rows = measured(results).loc[[name]]
    missing = rows[rows["off_scale"]].apply(_difference, axis=1).tolist()
    note = f"Not in the figure, because off its scale: {'; '.join(missing)}.\n\n" if missing else ""
    return f"{figure}\n\n{note}{finding_table(name, results)}"


@cache
def measured(results: Path) -> pd.DataFrame:
    """Return all comparisons of :func:`compare_arms`, indexed by the name of their finding.

    p is corrected within a family: the declared pairs of an outcome, or all others of the study's
    report and of this page.

    Raises:
        KeyError: an arm has no runs.
    """
    found = [each for group in FINDINGS.values() for each in group]
    rows: dict[Effect, dict[str, Any]] = {}
    for name in dict.fromkeys(each.study for each in found):
        study = read_named(name, results)
        labels = arm_labels(name, results)
        of_study = [each for each in found if each.study == name]
        for outcome in dict.fromkeys(each.outcome for each in of_study):
            here = [each for each in of_study if each.outcome == outcome]
            tests = declared_tests(study, outcome)
            declared = set(zip(tests["arm"], tests["baseline"]))
            others = [
                pair
                for pair in (*study.pairs, *(each.pair for each in here))
                if pair not in declared and set(pair) <= set(study.arms)
            ]
            tests = pd.concat([tests, compare_arms(study.runs, others, outcome)], ignore_index=True)
            texts = formatted(tests[TESTED], study.metric, outcome)
            texts.columns = ["mean", "95 % interval", "p (Holm)"]
            better = "right" if higher_is_better(study.runs, outcome) else "left"
            title = outcome_title(outcome, study.metric)
            tests = (
                tests.drop(columns="mean")
                .join(texts)
                .assign(
                    title=title,
                    better=better,
                    corpus=CORPORA[name],
                    n=tests["by_seed"].map(lambda values: len(values) or "-"),
                )
            )
            of_pair = {(row["arm"], row["baseline"]): row for row in tests.to_dict("records")}
            for each in here:
                arm, baseline = (_label_of(side, labels) for side in each.pair)
                shown = {"arm_label": arm, "baseline_label": baseline}
                rows[each] = of_pair[each.pair] | each._asdict() | shown
    names = [name for name, group in FINDINGS.items() for _ in group]
    return pd.DataFrame([rows[each] for each in found], index=names)


def _label_of(side: str, labels: Mapping[str, str]) -> str:
    """Return the label of an arm, or of a difference of two; empty if an arm has none.

    What two arms share is named once: ``(A minus B, 6 layers)``.
    """
    shown = [labels.get(arm, "") for arm in terms(side)]
    if not all(shown):
        return ""
    parts, _, ends = zip(*(each.rpartition(", ") for each in shown))
    if len(shown) == 1 or len(set(ends)) > 1:
        return MINUS.join(shown)
    return f"({MINUS.join(parts)}, {ends[0]})"


def finding_figure(name: str, results: Path) -> Figure:
    """Return a forest plot: a panel per outcome, a row per comparison, a dot per seed.

    A mark is filled if the verdict is not undecided.
    """
    rows = measured(results).loc[[name]]
    data = rows[~rows["off_scale"]]
    panels = list(data.groupby("title", sort=False))

    def plot(grid: Any) -> None:
        for axes, (title, rows) in zip(grid[:, 0], panels):
            for place, row in enumerate(rows.to_dict("records")):
                draw_row(
                    axes,
                    place,
                    {
                        "mean": row["difference"],
                        "low": row["difference_low"],
                        "high": row["difference_high"],
                        "values": row["by_seed"],
                        "filled": row["verdict"] != Verdict.UNDECIDED,
                    },
                )
            axes.axvline(0, color=INK, linewidth=0.8, alpha=0.6)
            axes.set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
            axes.set_ylim(len(rows) - 0.5, -0.5)
            axes.tick_params(axis="y", length=0)
            axes.tick_params(labelsize=SMALL)
            better = rows["better"].iloc[0]
            # right: a title that is wider than the axes is not cut there
            axes.set_xlabel(
                f"difference in {title}\n(better: {better})", fontsize=SMALL, loc="right"
            )
            axes.locator_params(axis="x", nbins=6)

    sizes = [len(rows) for _, rows in panels]
    height = sum(0.85 + 0.38 * size for size in sizes)
    ratios = {"height_ratios": [size + 1 for size in sizes]}
    return Figure(name, "", data, plot, height, (len(sizes), 1), ratios)


def _difference(row: Mapping[str, Any]) -> str:
    """Return Markdown: the difference of a row, by the labels of its arms or else their names."""
    arm, baseline = (row[f"{side}_label"] or f"`{row[side]}`" for side in ("arm", "baseline"))
    return f"{arm} minus {baseline}"


def _label(row: Mapping[str, Any]) -> str:
    """Return the two lines beside a row of a figure; what both arms share is on the second.

    If they are one difference in two settings, the settings are on the second line.
    """
    arm, baseline = (row[f"{side}_label"] or row[side] for side in ("arm", "baseline"))
    first, second = f"{arm} minus {baseline}", row["corpus"]
    (ours, comma, end), (theirs, _, other_end) = arm.rpartition(", "), baseline.rpartition(", ")
    if comma and row["arm_label"] and end == other_end:
        first, second = f"{ours} minus {theirs}", f"{second}, {end}"
    elif len(terms(ours)) > 1 and ours == theirs:
        first, second = ours.strip("("), f"{second}, {end.strip(')')} minus {other_end.strip(')')}"
    return f"{first}\n{second}, n = {len(row['by_seed'])}"


def figure_text(name: str, results: Path) -> str:
    """Return an SVG file whose description is the table, so that a stale figure is found."""
    svg = finding_figure(name, results).standalone
    opening, end, rest = svg.partition(">")
    return f"{opening}{end}\n<desc>\n{escape(finding_table(name, results))}\n</desc>{rest}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python tools/findings.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    folder = ROOT / "docs" / "findings"
    folder.mkdir(exist_ok=True)
    for name in FINDINGS:
        write_text(folder / f"{name}.svg", figure_text(name, ROOT / "results"))
    return 0


if __name__ == "__main__":
    run_command(main)
