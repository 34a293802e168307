"""The tables of a report: the cells of each row as text, a dash where there is nothing to say."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from norm_plugin.analysis.comparison import Row
from norm_plugin.analysis.paired import PairedRow
from norm_plugin.analysis.reaching import when_reached
from norm_plugin.analysis.seeds import LEVEL
from norm_plugin.analysis.study import Failure, Setting, Study
from norm_plugin.experiments.comparable import span
from norm_plugin.experiments.metrics import Metric
from norm_plugin.experiments.provenance import short_commit
from norm_plugin.experiments.results import Result, headline

TABLE_HEADER = (
    "setting",
    "seeds",
    "score",
    "deviation",
    "95 % interval",
    "difference",
    "95 % interval of it",
    "p (permutation)",
    "Holm",
    "p (t test)",
    "Holm",
    "what is shown",
)
PAIRED_HEADER = (
    "setting",
    "seed",
    "difference",
    "p (bootstrap)",
    "Holm",
    "p (randomization)",
    "Holm",
    "what is shown",
)
REACHED_HEADER = ("setting", "finished seeds that reach it", "updates", "minutes", "least loss")
SPEED_HEADER = (
    "setting",
    "score",
    "parameters",
    "of norms",
    "updates",
    "updates/s",
    "minutes",
    "peak host memory, MiB",
)
FAILED_HEADER = ("setting", "seed", "state", "in", "it had come to", "reason")
RUNS_HEADER = ("setting", "seed", "score", "commit", "date")
NOT_REACHED = "not reached"


def table_row(row: Row, failures: Sequence[Failure] = ()) -> tuple[str, ...]:
    """The cells of a row under TABLE_HEADER; a dash where there is nothing to say."""
    sample, difference, metric = row.sample, row.difference, row.setting.metric
    deviation = "-" if sample.deviation is None else metric.text(sample.deviation)
    return (
        row.setting.name,
        "; ".join([_seeds(row.setting.seeds), *_ended(failures)]),
        metric.text(sample.mean),
        deviation,
        _interval(metric, sample.interval),
        "-" if difference is None else metric.text(difference.mean, sign="+"),
        "-" if difference is None else _interval(metric, difference.interval, sign="+"),
        p_text(None if difference is None else difference.p),
        p_text(row.corrected),
        p_text(None if difference is None else difference.t_p),
        p_text(row.t_corrected),
        row.verdict,
    )


def p_text(value: float | None) -> str:
    """Three digits, and more where they would hide on which side of the 5 % level p is."""
    if value is None:
        return "-"
    if value < 0.0005:
        return "<0.001"
    text = f"{value:.3f}"
    return f"{value:.6f}".rstrip("0") if float(text) == LEVEL else text


def failed_row(name: str, failures: Sequence[Failure]) -> tuple[str, ...]:
    """The same for a setting without any result."""
    dashes = ["-"] * (len(TABLE_HEADER) - 3)
    return (name, "; ".join(_ended(failures)), *dashes, "no run has a result")


def _ended(failures: Sequence[Failure]) -> list[str]:
    """``2, 3 diverged``."""
    states = sorted({failure.state for failure in failures})
    return [
        f"{_seeds(one.seed for one in failures if one.state == state)} {state}" for state in states
    ]


def _seeds(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def _interval(metric: Metric, interval: tuple[float, float] | None, sign: str = "") -> str:
    return "-" if interval is None else " to ".join(metric.text(end, sign) for end in interval)


def paired_cells(row: PairedRow) -> tuple[str, ...]:
    """The cells of a row under PAIRED_HEADER."""
    if row.scores is None or row.corrected is None:
        return (row.setting.name, str(row.seed), "-", "-", "-", "-", "-", row.verdict)
    p_values = zip((row.scores.bootstrap_p, row.scores.randomization_p), row.corrected)
    return (
        row.setting.name,
        str(row.seed),
        row.setting.metric.text(row.scores.difference, sign="+"),
        *(f"{p:.4f}" for pair in p_values for p in pair),
        row.verdict,
    )


def reached_cells(study: Study, name: str, loss: float) -> tuple[str, ...]:
    """The cells of a setting under REACHED_HEADER."""
    setting = study.named(name)
    if setting is None:
        return (name, f"0 of {len(study.failures_of(name))}", "-", "-", "-")
    found = when_reached(setting, loss)
    seeds = f"{len(found.updates)} of {len(setting.runs) + len(study.failures_of(name))}"
    least = "unknown" if found.least is None else f"{found.least:.3f}"
    if not found.updates:
        return (name, seeds, NOT_REACHED, NOT_REACHED, least)
    updates = _mean(found.updates, "{:,.0f}")
    return (name, seeds, updates, _mean(found.seconds, "{:.1f}", 60), least)


def speed_cells(setting: Setting) -> tuple[str, ...]:
    """The cells of a setting under SPEED_HEADER: means over its seeds."""
    training = [run["training"] for run in setting.runs]
    return (
        setting.name,
        setting.metric.text(statistics.mean(setting.scores)),
        *(
            span([run["model"][name] for run in setting.runs])
            for name in ("parameters", "norm_parameters")
        ),
        _mean([one["updates"] for one in training], "{:,.0f}"),
        _mean([one["updates_per_second"] for one in training], "{:.2f}"),
        _mean([one["seconds"] for one in training], "{:.0f}", 60),
        _mean([one.get("peak_memory") for one in training], "{:,.0f}", 2**20),
    )


def failure_cells(failure: Failure) -> tuple[str, ...]:
    """The cells of a run under FAILED_HEADER."""
    where = (failure.state, failure.stage, failure.progress or "-")
    return (failure.name, str(failure.seed), *where, failure.reason)


def run_cells(setting: Setting, run: Result) -> tuple[str, ...]:
    """The cells of a run under RUNS_HEADER."""
    score = setting.metric.text(headline(run))
    return (setting.name, str(run["seed"]), score, commit_of(run), run["date"])


def commit_of(run: Result) -> str:
    """The commit that scored a run."""
    return short_commit(run.get("git") or {})


def _mean(values: Sequence[float | None], form: str, unit: float = 1) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "unknown"
    return form.format(sum(known) / len(known) / unit)
