"""One page on a comparison: table with tests, curves, speed; as HTML and as Markdown.

    python -m norm_plugin.analysis.report results/multi30k_cpu --out report/

``index.html`` needs nothing beside it. ``report.md`` shows the same, with its figures as files.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from norm_plugin.analysis.comparison import Row, compare_all, remarks
from norm_plugin.analysis.figures import Figure, curves_figure, scores_figure, speed_figure
from norm_plugin.analysis.study import Study, read_study
from norm_plugin.commands.command_line import CommandError, run_command, write_text
from norm_plugin.experiments.results import headline

TEMPLATES = Path(__file__).parent / "templates"
TABLE_HEADER = (
    "setting",
    "seeds",
    "score",
    "deviation",
    "95 % interval",
    "difference",
    "95 % interval of it",
    "p",
    "p (Holm)",
    "what is shown",
)


@dataclass(frozen=True)
class Section:
    """A heading with text, a table and figures, each of which may be absent."""

    name: str
    title: str
    text: list[str] = field(default_factory=list)
    header: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


def sections_of(study: Study) -> list[Section]:
    """What the page shows of a study, in order."""
    rows = compare_all(study)
    curves = [curves_figure(study, subset) for subset in ("train", "valid")]
    drawn = [figure for figure in curves if figure]
    return [
        Section(
            "scores",
            f"Scores against {study.baseline.name}",
            [_legend(study)],
            TABLE_HEADER,
            [table_row(row) for row in rows],
            remarks(rows),
            [scores_figure(rows)],
        ),
        Section(
            "curves",
            "Training",
            [] if drawn else ["Losses over training are not in these results."],
            figures=drawn,
        ),
        Section("speed", "Speed and size", *_speed_table(study), figures=[speed_figure(study)]),
        Section("runs", "Runs", *_runs_table(study)),
    ]


def _legend(study: Study) -> str:
    metric = study.baseline.metric
    labels = study.agreed(lambda run: run["scores"][metric.headline]["label"])
    better = "Higher" if metric.higher_is_better else "Lower"
    return (
        f"The score, {metric.title}, is {'; '.join(labels)}. {better} is better. Differences are "
        f"to {study.baseline.name}, with Welch's interval and the p of a two-sided permutation "
        "test over seeds, then corrected by Holm for all rows. A difference counts as shown where "
        "the corrected p is below 0.05."
    )


def table_row(row: Row) -> tuple[str, ...]:
    """The cells of a row under TABLE_HEADER; a dash where there is nothing to say."""
    sample, difference = row.sample, row.difference
    deviation = "-" if sample.deviation is None else f"{sample.deviation:.2f}"
    tested = difference is not None and difference.p is not None
    return (
        row.setting.name,
        ", ".join(map(str, row.setting.seeds)),
        f"{sample.mean:.2f}",
        deviation,
        _interval(sample.interval),
        "-" if difference is None else f"{difference.mean:+.2f}",
        "-" if difference is None else _interval(difference.interval, sign="+"),
        f"{difference.p:.3f}" if tested and difference is not None else "-",
        "-" if row.corrected is None else f"{row.corrected:.3f}",
        row.verdict,
    )


def _interval(interval: tuple[float, float] | None, sign: str = "") -> str:
    return "-" if interval is None else " to ".join(f"{end:{sign}.2f}" for end in interval)


def _speed_table(study: Study) -> tuple[list[str], tuple[str, ...], list[tuple[str, ...]]]:
    header = ("setting", "parameters", "of norms", "updates", "updates/s", "minutes", "best loss")
    rows: list[tuple[str, ...]] = []
    for setting in study.settings:
        training = [run["training"] for run in setting.runs]
        model = setting.runs[0]["model"]
        rows.append(
            (
                setting.name,
                f"{model['parameters']:,}",
                f"{model['norm_parameters']:,}",
                _mean([one["updates"] for one in training], "{:,.0f}"),
                _mean([one["updates_per_second"] for one in training], "{:.2f}"),
                _mean([one["seconds"] for one in training], "{:.0f}", 60),
                _mean([(one["best_valid"] or {}).get("value") for one in training], "{:.3f}"),
            )
        )
    return ["Means over seeds."], header, rows


def _mean(values: Sequence[float | None], form: str, unit: float = 1) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "unknown"
    return form.format(sum(known) / len(known) / unit)


def _runs_table(study: Study) -> tuple[list[str], tuple[str, ...], list[tuple[str, ...]]]:
    header = ("setting", "seed", "score", "commit", "date")
    rows: list[tuple[str, ...]] = [
        (
            setting.name,
            str(run["seed"]),
            study.baseline.metric.text(headline(run)),
            _commit(run),
            run["date"],
        )
        for setting in study.settings
        for run in setting.runs
    ]
    return [], header, rows


def _commit(run: dict[str, Any]) -> str:
    git = run.get("git") or {}
    return (git.get("commit") or "unknown")[:10] + (" and changes" if git.get("dirty") else "")


def facts_of(study: Study) -> list[str]:
    """What holds for all runs: data, test set, versions."""
    data = study.runs[0]["data"]
    versions = study.agreed(
        lambda run: ", ".join(f"{name} {number}" for name, number in run["versions"].items())
    )
    pairs = data.get("training_pairs")
    size = f", {pairs:,} training pairs" if pairs else ""
    return [
        f"Data: {data['corpus']}{size}, checksum {data['checksum'][:16]}; "
        f"scored on {study.runs[0]['split']}.",
        f"Versions: {'; '.join(versions)}.",
    ]


def write_report(study: Study, out: Path, title: str, command: str) -> list[Path]:
    """Write ``index.html``, ``report.md`` and the figures with their data; the paths written.

    Raises CommandError where ``out`` cannot be written, and where Jinja2 or matplotlib is missing.
    """
    sections = sections_of(study)
    content: dict[str, Any] = {
        "title": title,
        "facts": facts_of(study),
        "sections": sections,
        "command": command,
    }
    out.mkdir(parents=True, exist_ok=True)
    texts = {"index.html": _render("report.html.jinja", content)}
    texts["report.md"] = _render("report.md.jinja", content)
    for section in sections:
        for figure in section.figures:
            texts[f"{figure.name}.svg"] = figure.standalone
            texts[f"{figure.name}.csv"] = figure.data
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


def _render(template: str, content: dict[str, Any]) -> str:
    try:
        import jinja2
        import matplotlib  # noqa: F401 - the figures are drawn before the page is written
    except ImportError as error:
        raise CommandError(
            f"the report needs {error.name}; pip install 'norm_plugin[analysis]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(enabled_extensions=("html.jinja",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(content)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m norm_plugin.analysis.report",
        description="Write a page on a comparison: OUT/index.html, and OUT/report.md.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RESULTS", help="of experiments")
    parser.add_argument("--out", type=Path, default=Path("report"), help="default: %(default)s")
    parser.add_argument(
        "--baseline",
        default="layernorm",
        metavar="NORM",
        help="that the others are compared with (default: %(default)s)",
    )
    parser.add_argument("--title", help="default: the names of the experiments")
    args = parser.parse_args(argv)
    study = read_study(args.folders, args.baseline)
    title = args.title or " and ".join(sorted({run["experiment"] for run in study.runs}))
    words = ["python", "-m", "norm_plugin.analysis.report", *map(str, args.folders)]
    command = shlex.join([*words, "--baseline", args.baseline, "--out", str(args.out)])
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    written = write_report(study, args.out, title, f"{command}  # {today}")
    print(f"{len(study.runs)} runs of {len(study.settings)} settings: {written[0]}")
    return 0


if __name__ == "__main__":
    run_command(main)
