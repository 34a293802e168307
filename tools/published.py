"""What the papers report, beside what was measured here.

BLEU of the papers: IWSLT14 De-En tokenized and lower-cased, IWSLT15 En-Vi tokenized, WMT14 En-De
tokenized, cased, with compounds split. RT and SST5: accuracy in percent. The recipe names the
folder of ours to compare with: ``results/<experiment>_<recipe>``. claims.py compares RT and SST5.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from norm_plugin.analysis.study import markdown
from norm_plugin.experiments.results import read_results

NOT_RUN = "not run: needs the full corpus and a GPU"
POWERNORM = ("PowerNorm (Shen et al. 2020)", "powernorm")
ADANORM = ("AdaNorm (Xu et al. 2019)", "adanorm")
ADMIN = ("Admin (Liu et al. 2020), 5 seeds", "")  # a recipe of its own, which is not here
DIVERGES = "diverges"
# Training pairs without which a corpus is but a part of the published one: of about 160,000,
# 133,317 and 4.5 million before cleaning.
FULL = {"iwslt14_de_en": 140_000, "iwslt15_en_vi": 130_000, "wmt14_en_de": 3_500_000}
PAIRS = "data.training_pairs"
SPLIT, TOKENIZED = "scores.compound_split.score", "scores.tokenized.score"


@dataclass(frozen=True)
class Published:
    """One number of a paper: ``norm`` as in ``--norm-type``; ``note`` tells two of them apart."""

    source: tuple[str, str]
    norm: str
    score: str
    note: str = ""


def _of(source: tuple[str, str], **scores: str) -> tuple[Published, ...]:
    return tuple(Published(source, norm.replace("_", "-"), score) for norm, score in scores.items())


PUBLISHED: dict[str, tuple[Published, ...]] = {
    "iwslt14_de_en": (
        *_of(POWERNORM, layernorm="35.5", batchnorm="34.4", powernorm_v="35.5", powernorm="35.9"),
        *_of(ADANORM, none="34.0", layernorm="35.5", layernorm_simple="35.5", adanorm="35.6"),
        *_of(ADANORM, detachnorm="33.9", detachnorm_mean="35.6", detachnorm_std="34.2"),
        Published(ADMIN, "layernorm", "35.64 ± 0.23", "post-norm"),
        Published(ADMIN, "layernorm", "35.50 ± 0.04", "pre-norm"),
    ),
    "iwslt15_en_vi": (
        *_of(ADANORM, none="28.4", layernorm="31.2", layernorm_simple="31.6", adanorm="31.4"),
        *_of(ADANORM, detachnorm="27.7", detachnorm_mean="31.3", detachnorm_std="29.8"),
    ),
    "wmt14_en_de": (
        *_of(POWERNORM, layernorm="29.5", batchnorm="28.1", powernorm_v="28.5", powernorm="30.1"),
        *_of(ADANORM, none=DIVERGES, layernorm="28.3", layernorm_simple="28.4", adanorm="28.5"),
        *_of(ADANORM, detachnorm=DIVERGES, detachnorm_mean="28.3", detachnorm_std=DIVERGES),
    ),
    "rt": (
        *_of(ADANORM, none="76.85", layernorm="77.21", layernorm_simple="76.66", adanorm="77.50"),
        *_of(ADANORM, detachnorm="76.40", detachnorm_mean="75.02", detachnorm_std="77.04"),
    ),
    "sst5": (
        *_of(ADANORM, none="38.55", layernorm="39.23", layernorm_simple="40.54", adanorm="40.54"),
        *_of(ADANORM, detachnorm="40.04", detachnorm_mean="40.99", detachnorm_std="41.74"),
    ),
}


def published_table(experiment: str, results: Path) -> str:
    """Markdown: a row for each number that a paper reports for an experiment.

    Args:
        results: the folder that holds ``<experiment>_<recipe>/``.
    """
    rows = [
        {
            "paper": row.source[0],
            "norm": f"`{row.norm}`" + (f" ({row.note})" if row.note else ""),
            "published BLEU": row.score,
            "measured here": _measured(experiment, row, results),
        }
        for row in PUBLISHED[experiment]
    ]
    return markdown(pd.DataFrame(rows))


def _measured(experiment: str, row: Published, results: Path) -> str:
    """The mean over seeds of the kind of BLEU that the papers report on the corpus."""
    folder = results / f"{experiment}_{row.source[1]}"
    if not row.source[1] or not folder.is_dir():
        return NOT_RUN
    runs = read_results(folder)
    runs = runs[runs["norm"] == row.norm].reindex(columns=[PAIRS, SPLIT, TOKENIZED])
    scores = runs[SPLIT].fillna(runs[TOKENIZED])[runs[PAIRS] >= FULL[experiment]].tolist()
    if not scores:
        return NOT_RUN
    seeds = "one seed" if len(scores) == 1 else f"{len(scores)} seeds"
    return f"{statistics.mean(scores):.2f} ({seeds})"
