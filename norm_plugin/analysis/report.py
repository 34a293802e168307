"""One page on a comparison: table with tests, curves, speed; as HTML and as Markdown.

    norm-plugin report results/multi30k_cpu --out report/

``index.html`` needs nothing beside it. ``report.md`` shows the same, with its figures as files. Its
text is in ``templates/report.md.jinja``; its tables are made here, and its figures in figures.py.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import logging
import re
import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis.figures import FIGURES, Figure
from norm_plugin.analysis.records import statistics_of
from norm_plugin.analysis.stats import LEVEL, compare_arms, resolution
from norm_plugin.analysis.study import Study, read_study
from norm_plugin.analysis.translations import compare_translations, read_references
from norm_plugin.commands.command_line import CommandError, write_text
from norm_plugin.experiments.comparable import span
from norm_plugin.experiments.metrics import Metric
from norm_plugin.experiments.provenance import git_state, short_commit
from norm_plugin.experiments.studies import read_study_file, study_path
from norm_plugin.experiments.tables import distinct, markdown

TEMPLATES = Path(__file__).parent / "templates"
NOTHING = "-"
TESTED = {
    "difference": "difference",
    "difference_low": "95 % interval of it",
    "p": "p",
    "p_holm": "Holm",
    "p_permutation": "p (permutation)",
    "verdict": "verdict",
}
"""The columns from the difference on."""


def p_text(value: float | None) -> str:
    """Three digits, and more where they would hide on which side of the 5 % level p is."""
    if value is None or pd.isna(value):
        return NOTHING
    if value < 0.0005:
        return "<0.001"
    text = f"{value:.3f}"
    return f"{value:.6f}".rstrip("0") if float(text) == LEVEL else text


def _interval(metric: Metric, low: float, high: float, sign: str = "") -> str:
    return NOTHING if pd.isna(low) else " to ".join(metric.text(end, sign) for end in (low, high))


def difference_cells(row: dict[str, Any], metric: Metric) -> dict[str, str]:
    """The cells of a row of :func:`compare_arms` from its difference on."""
    difference = row["difference"]
    return {
        "difference": NOTHING if pd.isna(difference) else metric.text(difference, sign="+"),
        "95 % interval of it": _interval(
            metric, row["difference_low"], row["difference_high"], "+"
        ),
        **{TESTED[p]: p_text(row[p]) for p in ("p", "p_holm", "p_permutation")},
        "verdict": row["verdict"],
    }


def scores_table(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Every arm against the baseline, over seeds; those without a result last."""
    metric, rows = study.metric, []
    for row in table.to_dict("records"):
        ended = _ended(study.failures[study.failures["arm"] == row["arm"]])
        deviation = row["standard_deviation"]
        seeds = study.runs.loc[study.runs["arm"] == row["arm"], "seed"]
        rows.append(
            {
                "setting": row["arm"],
                "seeds": "; ".join([", ".join(map(str, seeds)), *ended]),
                "score": metric.text(row["mean"]),
                "deviation": NOTHING if pd.isna(deviation) else metric.text(deviation),
                "95 % interval": _interval(metric, row["low"], row["high"]),
                **difference_cells(row, metric),
            }
        )
    for arm in study.failed_arms:
        ended = _ended(study.failures[study.failures["arm"] == arm])
        dashes = dict.fromkeys(rows[0], NOTHING)
        rows.append(
            dashes | {"setting": arm, "seeds": "; ".join(ended), "verdict": "no run has a result"}
        )
    return pd.DataFrame(rows)


def _ended(failures: pd.DataFrame) -> list[str]:
    """``2, 3 diverged``."""
    return [f"{', '.join(map(str, of['seed']))} {state}" for state, of in failures.groupby("state")]


def sentences_table(table: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Every run against the baseline's with the same seed, over sentences."""
    shown = table[["arm", "seed"]].rename(columns={"arm": "setting"})
    shown["difference"] = [
        NOTHING if pd.isna(value) else metric.text(value, sign="+") for value in table["difference"]
    ]
    names = {"p": "p", "p_holm": "Holm", "control_p": "p between two of its seeds"}
    for column, name in names.items():
        shown[name] = [NOTHING if pd.isna(value) else f"{value:.4f}" for value in table[column]]
    return shown.assign(verdict=table["verdict"])


def least_loss(study: Study) -> float | None:
    """The least validation loss of the baseline, the largest over its seeds; None without curves.

    Every seed of the baseline reaches it. The last loss would not do: where the models overfit, it
    is so high that every run is below it from the start.
    """
    losses = study.runs.loc[study.runs["arm"] == study.baseline, "valid_loss"].dropna()
    return None if losses.empty else float(losses.max())


def reached(study: Study, loss: float) -> pd.DataFrame:
    """When the runs of each arm first had a validation loss of at most ``loss``.

    Returns:
        columns ``arm``, ``finished`` (runs), ``failed``, ``reaching``; ``updates`` and ``seconds``,
        means over the runs that reach it; and ``least``, the smallest loss of any run. The updates
        of a run take equally long, as far as a result can tell.
    """
    keys = ["experiment", "norm", "seed"]
    curves = study.curves[study.curves["subset"] == "valid"].dropna(subset="loss")
    first = curves[curves["loss"] <= loss].drop_duplicates(keys)
    runs = study.runs.merge(first[[*keys, "updates"]], how="left", on=keys)
    runs["seconds"] = runs["training.seconds"] * runs["updates"] / runs["training.updates"]
    rows = []
    for arm in study.names:
        of_arm = runs[runs["arm"] == arm]
        reach = of_arm[of_arm["updates"].notna()]
        rows.append(
            {
                "arm": arm,
                "finished": len(of_arm),
                "failed": int((study.failures["arm"] == arm).sum()),
                "reaching": len(reach),
                "updates": reach["updates"].mean(),
                "seconds": reach["seconds"].mean(skipna=False),
                "least": of_arm["valid_loss"].min(),
            }
        )
    return pd.DataFrame(rows)


def reached_table(study: Study, loss: float) -> pd.DataFrame:
    """The same as text."""
    rows = []
    for row in reached(study, loss).to_dict("records"):
        none = "not reached" if row["finished"] else NOTHING
        minutes = "unknown" if pd.isna(row["seconds"]) else f"{row['seconds'] / 60:.1f}"
        unknown = "unknown" if row["finished"] else NOTHING
        rows.append(
            {
                "setting": row["arm"],
                "finished seeds that reach it": f"{row['reaching']} of "
                f"{row['finished'] + row['failed']}",
                "updates": f"{row['updates']:,.0f}" if row["reaching"] else none,
                "minutes": minutes if row["reaching"] else none,
                "least loss": unknown if pd.isna(row["least"]) else f"{row['least']:.3f}",
            }
        )
    return pd.DataFrame(rows)


def speed_table(study: Study) -> pd.DataFrame:
    """Size, speed and memory beside the score: means over the seeds of an arm."""
    rows = []
    for arm, runs in study.runs.groupby("arm", sort=False):
        rows.append(
            {
                "setting": arm,
                "score": study.metric.text(statistics.mean(runs["score"].tolist())),
                "parameters": span(runs["model.parameters"]),
                "of norms": span(runs["model.norm_parameters"]),
                "updates": _mean(runs, "training.updates", "{:,.0f}"),
                "updates/s": _mean(runs, "training.updates_per_second", "{:.2f}"),
                "minutes": _mean(runs, "training.seconds", "{:.0f}", 60),
                "peak host memory, MiB": _mean(runs, "training.peak_memory", "{:,.0f}", 2**20),
            }
        )
    return pd.DataFrame(rows)


def _mean(runs: pd.DataFrame, column: str, form: str, unit: float = 1) -> str:
    if runs[column].isna().any():
        return "unknown"
    return form.format(sum(runs[column].tolist()) / len(runs) / unit)


def failures_table(study: Study) -> pd.DataFrame | None:
    """The runs without a result, and why; None where there is none."""
    names = {"arm": "setting", "seed": "seed", "state": "state", "stage": "in"}
    names |= {"progress": "it had come to", "reason": "reason"}
    table = study.failures[list(names)].replace({"progress": {"": NOTHING}})
    return None if table.empty else table.rename(columns=names)


def runs_table(study: Study) -> pd.DataFrame:
    """Every run with its commit."""
    table = study.runs[["arm", "seed"]].rename(columns={"arm": "setting"})
    table["score"] = study.runs["score"].map(study.metric.text)
    return table.assign(commit=commits(study.runs), date=study.runs["date"])


def commits(runs: pd.DataFrame) -> list[str]:
    """The commit that scored each run, for a reader."""
    states = runs[["commit", "dirty"]].astype(object)
    states = states.where(states.notna(), None)
    return [short_commit(state) for state in states.to_dict("records")]


def content_of(study: Study, data: Path | None = None, loss: float | None = None) -> dict[str, Any]:
    """What the template shows of a study.

    Args:
        data: the prepared corpus, whose references the tests on translations need.
        loss: the validation loss to reach; None: the least one of the baseline.
    """
    runs, metric = study.runs, study.metric
    table = compare_arms(runs, study.pairs, primary=study.primary)
    counts = runs["arm"].value_counts()
    can_show = resolution(table, metric.of_interest)
    can_show["value"] = can_show["value"].map(
        lambda value: "none is enough" if pd.isna(value) else f"{value:.3g}"
    )
    target = least_loss(study) if loss is None else loss
    sentences = None
    if metric.keeps_texts and data is not None:
        sentences = compare_translations(study, read_references(study, data))
    figures: dict[str, list[Figure]] = {section: [] for section, _ in FIGURES.values()}
    for section, drawing in FIGURES.values():
        figures[section] += [drawn] if (drawn := drawing(study)) is not None else []
    versions = runs[[name for name in runs if name.startswith("versions.")]]
    versions.columns = [name.partition(".")[2] for name in versions]
    pairs = runs["data.training_pairs"].dropna()
    return {
        "study": study,
        "metric": metric,
        "baseline": study.baseline,
        "corpus": runs["data.corpus"].iloc[0],
        "pairs": span(pairs.astype(int)) if len(pairs) else "",
        "checksums": [text[:16] for text in distinct(runs["data.checksum"])],
        "split": runs["split"].iloc[0],
        "versions": distinct(
            ", ".join(f"{name} {number}" for name, number in sorted(row.items()))
            for row in versions.to_dict("records")
        ),
        "common": [f"{key}={value}" for key, value in study.common.items()],
        "labels": distinct(runs[f"scores.{metric.headline}.label"]),
        "paired": bool(runs.loc[runs["arm"] == study.baseline, "split_seed"].notna().all()),
        "unequal": counts.nunique() > 1,
        "one_seed": counts.min() == 1,
        "scores": scores_table(study, table),
        "resolution": None if can_show.empty else can_show,
        "sentences": None if sentences is None else sentences_table(sentences, metric),
        "signatures": [] if sentences is None else distinct(sentences["signature"]),
        "reached": None if target is None else reached_table(study, target),
        "loss": target,
        "loss_given": loss is not None,
        "speed": speed_table(study),
        "records": sum(_has_record(run) for run in runs.to_dict("records")),
        "failures": failures_table(study),
        "runs": runs_table(study),
        "scored": distinct(commits(runs)),
        "figures": figures,
    }


def _has_record(run: dict[str, Any]) -> bool:
    return (statistics_of(run) or {}).get("record") is not None


def render(content: dict[str, Any]) -> dict[str, str]:
    """``index.html`` and ``report.md`` from what the template shows."""
    import jinja2
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    # Importing fairseq lets the debug lines of all libraries through
    logging.getLogger("markdown_it").setLevel(logging.WARNING)
    loader = jinja2.FileSystemLoader(TEMPLATES)
    blocks: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "undefined": jinja2.StrictUndefined,
    }
    html = jinja2.Environment(loader=loader, autoescape=True, **blocks)
    # A name with markup stays a name, in Markdown as in HTML
    text = jinja2.Environment(
        loader=loader,
        finalize=lambda value: value if isinstance(value, Markup) else _plain(str(value)),
        **blocks,
    )
    content = {**content, "command": Markup(content["command"])}
    drawn = {**content, "command": Markup(content["figure_command"])}
    inserted: list[str] = []

    def insert(template: str, **values: Any) -> Markup:
        inserted.append(html.get_template(template).render(drawn, **values))
        return Markup(f"inserted-{len(inserted) - 1}-here")

    def page(**functions: Any) -> str:
        rendered = text.get_template("report.md.jinja").render(content, **functions)
        return re.sub(r"\n{3,}", "\n\n", rendered).strip() + "\n"

    body = MarkdownIt().render(
        page(
            table=lambda table: insert("table.html.jinja", table=table),
            figure=lambda figure: insert("figure.html.jinja", figure=figure),
        )
    )
    body = re.sub(r"<p>inserted-(\d+)-here</p>", lambda match: inserted[int(match[1])], body)
    return {
        "index.html": html.get_template("page.html.jinja").render(content, body=body) + "\n",
        "report.md": page(
            table=lambda table: Markup(
                _plain(markdown(table.rename(columns=str.strip), _align(table)))
            ),
            figure=lambda figure: Markup(
                text.get_template("figure.md.jinja").render(drawn, figure=figure)
            ),
        ),
    }


def _plain(text: str) -> str:
    """Text that Markdown takes for no markup of HTML."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def _align(table: pd.DataFrame) -> list[str]:
    """Numbers to the right; the first column and the last hold words."""
    return ["---", *["---:"] * (len(table.columns) - 2), "---"]


def write_files(texts: dict[str, str], out: Path) -> list[Path]:
    """Write texts by file name into a folder, which is made if it is missing."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {out}: {error.strerror}") from error
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


def figure_files(figures: Iterable[Figure]) -> dict[str, str]:
    """Figures and their data as files, by name."""
    return {
        name: text
        for one in figures
        for name, text in ((f"{one.name}.svg", one.standalone), (f"{one.name}.csv", one.csv))
    }


def require_packages() -> None:
    """Raise CommandError where the extra ``analysis`` is not installed."""
    for name in ("jinja2", "markdown_it", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise CommandError(f"the report needs {name}; pip install 'norm_plugin[analysis]'")


def commands_of(args: argparse.Namespace) -> dict[str, str]:
    """The command that makes the page, and the one of a figure, whose name follows."""
    words = ["norm-plugin", "report", *map(str, args.folders), "--baseline", args.baseline]
    words += [word for old, new in args.labels for word in ("--label", f"{old}={new}")]
    words += [word for key in args.vary for word in ("--vary", key)]
    out = ["--out", str(args.out)]
    more = [] if args.data is None else ["--data", str(args.data)]
    more += [] if args.loss is None else ["--loss", str(args.loss)]
    more += [] if args.study is None else ["--study", args.study]
    more += [] if args.title is None else ["--title", args.title]
    return {
        "command": shlex.join([*words, *more, *out]),
        "figure_command": shlex.join([*words, *out]),
    }


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.rpartition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"it is {text!r} and must be A=B")
    return old, new


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``report``."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin report",
        description="Write a page on a comparison: OUT/index.html, and OUT/report.md.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="RESULTS", help="of experiments")
    parser.add_argument("--out", type=Path, default=Path("report"), help="default: %(default)s")
    parser.add_argument(
        "--baseline",
        default="layernorm",
        metavar="NORM",
        help="the norm, or the row, that the others are compared with (default: %(default)s)",
    )
    parser.add_argument(
        "--label",
        type=_renaming,
        action="append",
        default=[],
        dest="labels",
        metavar="A=B",
        help="name the row A of the table B; may be repeated",
    )
    parser.add_argument(
        "--study",
        metavar="STUDY",
        help="the study whose file declares the primary comparisons",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY",
        help="a setting in which the runs may differ, such as optimization.lr; may be repeated",
    )
    parser.add_argument("--title", help="default: the names of the experiments")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the prepared corpus, such as work/data/multi30k-2000: also run the paired tests on "
        "the translations that are kept beside the results",
    )
    parser.add_argument(
        "--loss",
        type=float,
        help="show the time to this validation loss (default: the least one of the baseline)",
    )
    parser.add_argument("--figure", choices=FIGURES, help="write only this figure and its data")
    args = parser.parse_args(argv)
    require_packages()
    file = None if args.study is None else read_study_file(study_path(args.study))
    study = read_study(args.folders, args.baseline, dict(args.labels), file, args.vary)
    if args.figure is not None:
        figure = FIGURES[args.figure][1](study)
        if figure is None:
            raise CommandError(f"there is no data for the figure {args.figure} in these results")
        print(*write_files(figure_files([figure]), args.out), sep="\n")
        return 0
    content = {
        **content_of(study, args.data, args.loss),
        **commands_of(args),
        "title": args.title or " and ".join(distinct(study.runs["experiment"])),
        "commit": short_commit(git_state(Path(__file__).parent)),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    figures = [one for of_section in content["figures"].values() for one in of_section]
    written = write_files(render(content) | figure_files(figures), args.out)
    print(f"{len(study.runs)} runs of {len(study.arms)} settings: {written[0]}")
    return 0
