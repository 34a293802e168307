"""What the papers report and what was measured here: scores and figures over training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from norm_lab.metrics import find_metric
from norm_lab.report.records import RECORDED, drawn_places, recorded
from norm_lab.report.text import markdown
from norm_lab.results.table import read_results
from norm_lab.study.comparisons import outcome_values, split_ratio
from norm_lab.study.significance import describe, half_interval
from norm_lab.study.study import read_study
from norm_plugin.placements import PLACEMENTS
from papers.findings import read_named

# ---- scores ---------------------------------------------------------------------------------

POWERNORM, ADANORM = "powernorm", "adanorm"
NORMS: dict[str, tuple[str, ...]] = {
    POWERNORM: ("layernorm", "batchnorm", "powernorm-v", "powernorm"),
    ADANORM: (
        *("none", "layernorm", "layernorm-simple", "adanorm"),
        *("detachnorm", "detachnorm-mean", "detachnorm-std"),
    ),
}
PUBLISHED: dict[str, dict[str, tuple[str, ...]]] = {
    "iwslt14_de_en": {
        POWERNORM: ("35.5", "34.4", "35.5", "35.9"),
        ADANORM: ("34.0", "35.5", "35.5", "35.6", "33.9", "35.6", "34.2"),
    },
    "iwslt15_en_vi": {ADANORM: ("28.4", "31.2", "31.6", "31.4", "27.7", "31.3", "29.8")},
    "wmt14_en_de": {
        POWERNORM: ("29.5", "28.1", "28.5", "30.1"),
        ADANORM: ("diverges", "28.3", "28.4", "28.5", "diverges", "28.3", "diverges"),
    },
    "rt": {ADANORM: ("76.85", "77.21", "76.66", "77.50", "76.40", "75.02", "77.04")},
    "sst5": {ADANORM: ("38.55", "39.23", "40.54", "40.54", "40.04", "40.99", "41.74")},
    "mnist": {ADANORM: ("99.14", "99.13", "99.09", "99.35", "99.10", "99.25", "99.10")},
    "parsing": {ADANORM: ("88.31", "89.12", "89.19", "89.23", "89.79", "89.45", "89.80")},
    "enwik8": {ADANORM: ("1.04", "1.07", "1.07", "1.07", "1.12", "1.07", "1.10")},
    "ptb": {POWERNORM: ("53.2", "60.7", "55.3", "47.6")},
    "ptb, validation": {POWERNORM: ("58.0", "71.7", "59.7", "51.6")},
    "wikitext103": {POWERNORM: ("20.9", "27.2", "21.3", "17.9")},
    "wikitext103, validation": {POWERNORM: ("22.7", "28.4", "23.6", "18.3")},
}
"""The score of each of a paper's :data:`NORMS`.

BLEU: IWSLT14 De-En tokenized and lower-cased, IWSLT15 En-Vi tokenized, WMT14 En-De tokenized,
cased, with compounds split. Accuracy in percent: RT, SST5, MNIST. UAS: parsing. Bits a character:
enwik8. Perplexity a word: ptb, wikitext103.
"""
STUDIED = {"rt": "adanorm_rt", "sst5": "adanorm_sst5", "ptb": "ptb_cpu"}
"""The study with runs of a paper's norms on its corpus and at its size."""


def published_scores(experiment: str, paper: str = ADANORM) -> dict[str, str]:
    """Return the scores that a paper reports, by norm."""
    return dict(zip(NORMS[paper], PUBLISHED[experiment][paper]))


def scores_table(paper: str, results: Path) -> str:
    """Return Markdown: the norms of POWERNORM or ADANORM, by corpus: published, and here.

    Means over seeds are given for the corpora of :data:`STUDIED`.
    """
    corpora = [experiment for experiment, papers in PUBLISHED.items() if paper in papers]
    studies = {
        corpus: read_named(STUDIED[corpus], results) for corpus in corpora if corpus in STUDIED
    }
    rows = []
    for at, norm in enumerate(NORMS[paper]):
        cells = {corpus: PUBLISHED[corpus][paper][at] for corpus in corpora}
        for corpus, study in studies.items():
            of_norm = study.runs["arm"].str.partition(", ")[0] == norm
            if len(scores := outcome_values(study.runs)[of_norm]):
                cells[corpus] += f" (here {scores.mean():.2f}, n = {len(scores)})"
        rows.append({"norm": f"`{norm}`", **cells})
    return markdown(pd.DataFrame(rows))


def perplexity_table(results: Path) -> str:
    """Return Markdown: perplexities on the Penn Treebank by norm and mask, here and published.

    Here, means over seeds. That of the validation text is of the checkpoint that is scored.
    """
    runs = read_named(STUDIED["ptb"], results).runs
    published = [published_scores(split, POWERNORM) for split in ("ptb", "ptb, validation")]
    columns = ["score", "training.best_valid.value"]
    rows = []
    for mask, norm in product(("causal", "released"), NORMS[POWERNORM]):
        is_mask = runs["settings.model.tensorized_mask"] == mask
        these = runs.loc[is_mask & (runs["settings.model.norm_type"] == norm), columns]
        if len(these):
            test, valid = (f"{mean:.2f}" for mean in these.mean())
            of_paper = [each[norm] for each in published]
            rows.append([f"`{norm}`", mask, len(these), test, of_paper[0], valid, of_paper[1]])
    titles = ["test, here", "test, published", "validation, here", "validation, published"]
    return markdown(pd.DataFrame(rows, columns=["norm", "mask", "seeds", *titles]))


def reproduction_table(experiment: str, results: Path) -> str:
    """Return Markdown: per norm the published score, and the mean of the seeds with two intervals.

    They are of the mean and of one more seed, because the paper gives no number of seeds.
    """
    runs = read_named(f"adanorm_{experiment}", results).runs
    published = published_scores(experiment)
    rows = []
    for norm in dict.fromkeys([*published, *runs["norm"]]):
        scores = outcome_values(runs[runs["norm"] == norm]).tolist()
        sample = describe(scores, split_ratio(runs))
        one_more = half_interval(scores) * math.sqrt(len(scores) + 1)
        row = [f"`{norm}`", published.get(norm, "-"), f"{sample.mean:.2f}", len(scores)]
        for low, high in (sample.interval, (sample.mean - one_more, sample.mean + one_more)):
            inside = low <= float(published.get(norm, "nan")) <= high
            row.append(f"{low:.2f} to {high:.2f}")
            row.append(("yes" if inside else "no") if norm in published else "-")
        rows.append(row)
    columns = ["norm", "published", "mean here", "seeds"]
    for interval in ("95 % interval of the mean", "95 % interval of one more seed"):
        columns += [interval, "published inside"]
    return markdown(pd.DataFrame(rows, columns=columns))


# ---- PowerNorm's figures of statistics over training ----------------------------------------

PARTS = 10
"""The updates are cut into so many parts. In the first, running statistics leave their start."""
LINES = (
    ("powernorm-2", "distance_mean", "batchnorm"),
    ("powernorm-2", "distance_variance", "batchnorm"),
    ("powernorm-3", "g_mu", "batchnorm"),
    ("powernorm-3", "g_sigma2", "batchnorm"),
    ("powernorm-4", "distance_square", "powernorm-v"),
    ("powernorm-4", "g_psi2", "powernorm-v"),
    ("powernorm-4", "distance_square", "powernorm"),
    ("powernorm-4", "g_psi2", "powernorm"),
    ("powernorm-4", "distance_square", "powernorm-layer-scale-groups-0"),
    ("powernorm-7", "gamma_over_psi_0.95", "powernorm-v"),
    ("powernorm-7", "gamma_over_psi_0.95", "powernorm"),
)
"""Figure, value and norm: those with a running form of the value, and one not pre-scaled."""
DIFFERENCES = {LINES[4]: LINES[1], LINES[5]: LINES[3]}
"""What Figure 4 sets side by side: ``powernorm-v`` minus ``batchnorm``."""


FIRST = ("powernorm-2", "powernorm-3", "powernorm-4")
"""The figures that the paper draws of the first norm; those of Figure 7 are of several layers."""


def recorded_figures_table(folder: Path) -> str:
    """Return Markdown: one row per line and per difference, at the first norm.

    Figure 7 is the mean over the norms that are drawn. Lines of a norm without runs are omitted.
    """
    study = read_study([folder])
    runs = study.runs.assign(arm=study.runs["norm"])
    tenths, rows = {}, []
    for line in [line for line in LINES if line[-1] in set(runs["norm"])]:
        drawn = _values_in_figure(runs, *line)
        tenths[line] = in_tenths(drawn)
        shown = {"largest": f"{drawn.groupby(['place', 'update'])['number'].mean().max():.3g}"}
        rows.append(_row(*line, tenths[line]) | shown)
    for line, less in DIFFERENCES.items():
        if not {line, less} <= tenths.keys():
            continue
        value, norm = ("` minus `".join(both) for both in zip(line[1:], less[1:]))
        rows.append(_row(line[0], value, norm, tenths[line] - tenths[less]))
    return markdown(pd.DataFrame(rows).fillna("-"))


def first_norm_tenths(runs: pd.DataFrame, figure: str, value: str, norm: str) -> pd.DataFrame:
    """Return one value of one norm, at the first norm or the drawn ones: see :func:`in_tenths`."""
    return in_tenths(_values_in_figure(runs, figure, value, norm))


def _values_in_figure(runs: pd.DataFrame, figure: str, value: str, norm: str) -> pd.DataFrame:
    """Return what the paper's figure draws of one value of one norm."""
    what = RECORDED[figure]
    values = recorded(runs[runs["norm"] == norm], what)
    places = drawn_places(values, what)[: 1 if figure in FIRST else None]
    drawn = values["place"].isin(places) & (values["value"] == value)
    return values[drawn].astype({"number": float})


OUTLIERS = ("outliers", "late outliers")
"""The largest value over the median, without the first part; and that of the last part."""


def in_tenths(drawn: pd.DataFrame) -> pd.DataFrame:
    """Return means over the updates of the second and the last part, and OUTLIERS, by seed."""
    updates = sorted(drawn["update"].unique())
    size = len(updates) // PARTS
    parts = {"second tenth": updates[size : 2 * size], "last tenth": updates[-size:]}
    means = {
        name: drawn[drawn["update"].isin(part)].groupby("seed")["number"].mean()
        for name, part in parts.items()
    }
    settled = drawn[drawn["update"] >= updates[size]].groupby("seed")["number"]
    last = drawn[drawn["update"].isin(parts["last tenth"])].groupby("seed")["number"]
    shares = (each.max() / settled.median() for each in (settled, last))
    return pd.DataFrame({**means, **dict(zip(OUTLIERS, shares))})


def _row(figure: str, value: str, norm: str, tenths: pd.DataFrame) -> dict[str, Any]:
    """Return a row with the mean and its 95 % interval of both parts and of their change."""
    parts = tenths.drop(columns=list(OUTLIERS))
    parts = parts.assign(change=parts["last tenth"] - parts["second tenth"])
    row = {"figure": figure.rpartition("-")[2], "value": f"`{value}`", "norm": f"`{norm}`"}
    return {**row, **{name: _interval(parts[name]) for name in parts}, "n": str(len(parts))}


def _interval(values: Sequence[float]) -> str:
    sample = describe(list(values))
    if math.isnan(sample.interval[0]):
        return f"{sample.mean:.2g}"
    return "{:.2g} ({:.2g} to {:.2g})".format(sample.mean, *sample.interval)


# ---- deep stacks ----------------------------------------------------------------------------

GRADIENT = "fc2.weight_gradient_norm"


def layer_gradients_table(folder: Path) -> str:
    """Return Markdown: one row per placement, means over its seeds.

    A gradient is that of the second FFN matrix, as a norm, in the first or last recorded update.
    """
    runs = read_results(folder)
    runs = runs.assign(arm=runs["placement"])
    values = recorded(runs, RECORDED["layers"])
    gradients = values[values["value"] == GRADIENT].astype({"number": float, "update": int})
    layers = list(dict.fromkeys(gradients["place"]))
    means = gradients.pivot_table("number", "arm", ["update", "place"])
    metric = find_metric(runs["metric"].iloc[0])
    table = runs.groupby("arm")[["score"]].mean().map(metric.text)
    for update in sorted(set(gradients["update"])):
        for number, place in ((1, layers[0]), (len(layers), layers[-1])):
            table[f"update {update}, layer {number}"] = means[update, place].map("{:.2g}".format)
    table = table.reindex([name for name in PLACEMENTS if name in table.index])
    table = table.rename(index="`{}`".format, columns={"score": metric.title})
    return markdown(table.reset_index(names="placement"), ["---", *["---:"] * len(table.columns)])
