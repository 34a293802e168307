#!/usr/bin/env python3
"""Draw the figures of docs/findings.md from the committed results.

    python tools/findings.py

tools/docs.py writes the tables of the same comparisons.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis.figures import AGAINST, INK, SMALL, Figure, draw_row
from norm_plugin.analysis.report import outcome_title, p_text, table_markdown, tables_of
from norm_plugin.analysis.stats import Verdict, compare_arms, higher_is_better
from norm_plugin.analysis.study import Study, markdown, read_study
from norm_plugin.commands.command_line import run_command, write_text
from norm_plugin.experiments.studies import EQUIVALENCE, SCORE, read_study_file, study_path

ROOT = Path(__file__).resolve().parents[1]
LOSS = "valid_loss"


@dataclass(frozen=True)
class Effect:
    """A comparison: ``arm`` less ``baseline``, under pre-norm where they name no placement."""

    study: str
    arm: str
    baseline: str = "layernorm"
    outcome: str = SCORE


RESULTS = {
    "characters": "tinyshakespeare_short",
    "adanorm_rt": "rt",
    "adanorm_sst5": "sst5",
    "warmup": "warmup/multi30k_cpu",
}
"""The folder of a study's results, where it has not the name of the study."""
CORPORA = {
    "characters": "characters",
    "characters_tuned_short": "characters, own rates",
    "characters_tuned_post": "characters, own rates",
    "characters_powernorm": "characters, own rates",
    "adanorm_rt": "RT",
    "adanorm_sst5": "SST5",
    "sst5_confirmed": "SST5, new seeds",
    "multi30k_cpu": "Multi30k",
    "warmup_confirmed": "Multi30k, new seeds",
    "stat_tokens": "characters, large batches",
    "depth": "characters, 24 layers",
}
PRE_24 = "layernorm-decoder-layers-24, pre"
CLASSIFICATION = ("adanorm_sst5", "adanorm_rt")
PARTS = (
    ("powernorm", "powernorm-layer-scale-groups-0"),
    ("powernorm-v", "batchnorm"),
    ("powernorm", "powernorm-v"),
)
"""With a part of PowerNorm and without it: layer-scale, the divisor, running statistics."""
FINDINGS = {
    "norms": (
        *(Effect("characters_tuned_short", norm) for norm in ("none", "powernorm", "dyt")),
        *(
            Effect("characters_tuned_post", f"{norm}, post", "layernorm, post")
            for norm in ("rmsnorm", "powernorm")  # that of dyt would flatten the figure
        ),
        *(Effect("characters", norm) for norm in ("none", "rmsnorm", "powernorm", "adanorm")),
        *(
            Effect("characters", f"{norm}, post", "layernorm, post")
            for norm in ("rmsnorm", "powernorm", "adanorm")
        ),
    ),
    "powernorm": (
        Effect("characters_powernorm", "batchnorm", "batchnorm-layer-scale-groups-0"),
        *(
            Effect(study, *part)
            for study in ("characters_powernorm", "multi30k_cpu")
            for part in PARTS
        ),
        Effect("multi30k_cpu", "powernorm"),
        Effect("multi30k_cpu", "powernorm-released", "powernorm"),
    ),
    "small-batches": (
        *(
            Effect("stat_tokens", f"{norm}-stat-tokens-256", f"{norm}-stat-tokens-4096")
            for norm in ("batchnorm", "powernorm")
        ),
        *(
            Effect("stat_tokens", f"powernorm-stat-tokens-{n}", f"batchnorm-stat-tokens-{n}")
            for n in (256, 1024, 4096)
        ),
    ),
    "adanorm": (
        *(
            Effect("sst5_confirmed", "adanorm", baseline, outcome)
            for outcome in (SCORE, LOSS)
            for baseline in ("layernorm", "layernorm-kaiming")
        ),
        *(
            Effect(study, "adanorm", outcome=outcome)
            for outcome in (SCORE, LOSS)
            for study in CLASSIFICATION
        ),
        Effect("adanorm_sst5", "adanorm", "layernorm-kaiming"),
        Effect("adanorm_sst5", "layernorm-kaiming"),
    ),
    "warmup": (  # that of post without the increase would flatten the figure
        Effect("warmup_confirmed", "layernorm-warmup-init-lr-0.005, pre", "layernorm, pre"),
        Effect("warmup_confirmed", "layernorm-warmup-init-lr-0.005, pre", "layernorm, post"),
    ),
    "depth": tuple(  # that of post would flatten the figure
        Effect("depth", f"layernorm-{placement}-decoder-layers-24, {placement}", PRE_24)
        for placement in ("rezero", "deepnorm", "scaled-pre")
    ),
    "gain-and-bias": tuple(
        Effect(study, "layernorm-simple", outcome=outcome)
        for outcome in (SCORE, LOSS)
        for study in CLASSIFICATION
    ),
    "derivatives": tuple(
        Effect(study, arm, baseline, outcome)
        for outcome in (SCORE, LOSS)
        for arm, baseline in (
            ("layernorm-simple", "detachnorm"),
            ("detachnorm-mean", "detachnorm-std"),
        )
        for study in CLASSIFICATION
    ),
    "little-data": (
        *(Effect("sst5_confirmed", "dyt", outcome=outcome) for outcome in (SCORE, LOSS)),
        *(Effect(study, norm) for norm in ("dyt", "none") for study in CLASSIFICATION),
        *(
            Effect(study, norm, outcome=LOSS)
            for norm in ("dyt", "none")
            for study in CLASSIFICATION
        ),
        *(Effect("characters", norm) for norm in ("dyt", "none")),
    ),
}
"""The comparisons that answer a question, by the name of its block and its figure."""


def read_named(study: str, results: Path) -> Study:
    """A study with its declarations, from the committed results."""
    file = read_study_file(study_path(study))
    return read_study([results / RESULTS.get(study, study)], file=file)


def declared_table(study: str, results: Path) -> str:
    """Markdown: what a study declares, with what its runs give, as in its report."""
    return table_markdown(tables_of(read_named(study, results))["primary"])


def finding_table(name: str, results: Path) -> str:
    """Markdown: a row for each comparison of a finding.

    :func:`_tests` says over which comparisons p is corrected.
    """
    rows = measured(results).loc[[name]]
    return markdown(
        pd.DataFrame(
            {
                "difference": f"`{row['arm']}` less `{row['baseline']}`",
                "corpus": CORPORA[row["study"]],
                "outcome": row["title"],
                "n": f"{len(row['by_seed'])}" if row["by_seed"] else "-",
                "mean": f"{row['difference']:+.{row['digits']}f}",
                "95 % interval": _interval(row),
                "p (Holm)": p_text(row["p_holm"]),
                "verdict": str(row["verdict"]),
                "declared": "before" if row["family"] == "primary" else "-",
            }
            for row in rows.to_dict("records")
        )
    )


def finding_block(name: str, results: Path) -> str:
    """Markdown: the figure of a finding, and its table."""
    return f"![Differences and their 95 % intervals](findings/{name}.svg)\n\n" + finding_table(
        name, results
    )


def _interval(row: dict[str, Any]) -> str:
    ends = (row["difference_low"], row["difference_high"])
    return "-" if math.isnan(ends[0]) else " to ".join(f"{e:+.{row['digits']}f}" for e in ends)


@cache
def measured(results: Path) -> pd.DataFrame:
    """All comparisons, as :func:`compare_arms` has them, indexed by the name of their finding.

    Raises KeyError for an arm without runs.
    """
    effects = [(name, each) for name, group in FINDINGS.items() for each in group]
    rows: dict[Effect, dict[str, Any]] = {}
    for study in dict.fromkeys(each.study for _, each in effects):
        runs = read_named(study, results)
        for outcome in (SCORE, LOSS):
            table = _tests(runs, outcome, [each for _, each in effects if each.study == study])
            title = outcome_title(outcome, runs.metric)
            better = "right" if higher_is_better(runs.runs, outcome) else "left"
            more = {"title": title, "better": better, "digits": 3 if better == "left" else 2}
            for _, each in effects:
                if (each.study, each.outcome) == (study, outcome):
                    rows[each] = table[_arms(each)] | vars(each) | more
    return pd.DataFrame([rows[each] for _, each in effects], index=[name for name, _ in effects])


def _tests(
    study: Study, outcome: str, effects: Sequence[Effect]
) -> dict[tuple[str, str], dict[str, Any]]:
    """The tests of all pairs of arms, by pair, each corrected within its family.

    The pairs that the study declares are one family, also by an outcome that it does not name.
    Those of its report, together with the others on this page, are another one.
    """
    declared = [
        (each.arm, each.baseline)
        for each in study.primary
        if each.outcome == outcome or each.test != EQUIVALENCE
    ]
    compared = [_arms(each) for each in effects if each.outcome == outcome]
    others = [
        pair
        for pair in (*study.pairs, *compared)
        if pair not in declared and set(pair) <= set(study.arms)
    ]
    tables = [
        compare_arms(study.runs, declared, outcome, study.primary),
        compare_arms(study.runs, others, outcome),
    ]
    rows = pd.concat(tables).to_dict("records")
    return {(row["arm"], row["baseline"]): row for row in rows}


def _arms(effect: Effect) -> tuple[str, str]:
    """Arm and baseline as the study names them, with their placement."""
    arm, baseline = (
        name if ", " in name else f"{name}, pre" for name in (effect.arm, effect.baseline)
    )
    return arm, baseline


def finding_figure(name: str, results: Path) -> Figure:
    """A forest plot: a panel for each outcome, a row for each comparison, a dot for each seed.

    A mark is filled where the verdict is not undecided.
    """
    data = measured(results).loc[[name]]
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


def _label(row: dict[str, Any]) -> str:
    baseline = row["baseline"].replace("-layer-scale-groups-0", " without layer-scale")
    # the depth is in the name of the corpus
    arms = AGAINST["depth"].without(f"{row['arm']} less {baseline}")
    return f"{arms}\n{CORPORA[row['study']]}, n = {len(row['by_seed'])}"


def figure_text(name: str, results: Path) -> str:
    """A file of SVG whose description is the table, so that a stale figure is found."""
    svg = finding_figure(name, results).standalone
    opening, end, rest = svg.partition(">")
    return f"{opening}{end}\n<desc>\n{escape(finding_table(name, results))}\n</desc>{rest}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
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
