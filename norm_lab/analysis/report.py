"""The report of a comparison: verdicts, intervals, curves and speed, as HTML, Markdown and LaTeX.

    norm-plugin report results/multi30k_cpu --out report/

``index.html`` is self-contained. ``report.md`` has the same content with its figures as files, and
``comparisons.csv`` the numbers behind the verdicts. ``--format latex`` also writes each table as
LaTeX, each figure as PDF, and ``report.tex`` with all of them. The text of the page is in
``templates/report.md.jinja``; figures.py makes its figures.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import logging
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from norm_lab.analysis.figures import FIGURES, Figure, sensitivity_figure
from norm_lab.analysis.latex import document, latex_table
from norm_lab.analysis.records import record_of
from norm_lab.analysis.stats import (
    EQUIVALENCE_BY,
    LEVEL,
    compare_arms,
    compare_primary,
    resolution,
    split_ratio,
)
from norm_lab.analysis.study import (
    DEFAULT_BASELINE,
    KERNELS_FOUND,
    Study,
    distinct,
    markdown,
    read_study,
    span,
)
from norm_lab.analysis.translations import compare_translations, read_references
from norm_lab.analysis.tuning import (
    Tuned,
    chosen_table,
    learning_rate_sensitivity,
    read_tuned,
    tuned_on_itself,
)
from norm_lab.experiments.metrics import Metric
from norm_lab.experiments.results import RUN_KEY, git_state, short_commit
from norm_lab.experiments.studies import LOSSES, SCORE, read_study_file, study_path
from norm_lab.experiments.tune import OUTCOME
from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write

TEMPLATES = Path(__file__).parent / "templates"
HTML, LATEX = "html", "latex"
OF_STUDY = ("baseline", "study", "vary", "label")
"""The options that determine the study."""
TUNED = ".tuned.json"
"""The suffix of the file that ``norm-plugin tune`` writes beside the file of a study."""
NOTHING, UNKNOWN = "-", "unknown"
NO_RESULT = "no run has a result"
LOSS_DIGITS = 3


# --- the text of a table ------------------------------------------------------------------------


class Column(NamedTuple):
    """How a column of numbers is shown; text stays as it is.

    Attributes:
        form: a format, or one of UNITS, SIGNED and P; empty for numbers as they are.
        end: the column of the upper end, if this one is the lower end of an interval.
    """

    title: str
    form: str = ""
    missing: str = NOTHING
    end: str = ""


UNITS, SIGNED, P = "in the unit of the outcome", "the same, with a sign", "p"
COLUMNS = {
    "mean": Column("mean", UNITS),
    "standard_deviation": Column("standard deviation", UNITS),
    "low": Column("95 % interval", UNITS, end="high"),
    "difference": Column("difference", SIGNED),
    "difference_low": Column("95 % interval of the difference", SIGNED, end="difference_high"),
    "p": Column("p", P),
    "p_permutation": Column("p (permutation)", P),
    "p_holm": Column("p (Holm)", P),
    "control_p": Column("p between two of its seeds", P),
    "seeds_paired": Column("seeds, paired", "{:,.0f}"),
    "seeds_unpaired": Column("seeds, unpaired", "{:,.0f}"),
    "lr": Column("chosen", "{:g}"),
    "tuned": Column("validation loss", UNITS),
    "next_lr": Column("next best", "{:g}"),
    "behind": Column("behind by", UNITS),
    "spread": Column("standard deviation between seeds", UNITS),
    "sensitivity": Column("sensitivity", UNITS),
    "sensitivity_low": Column("95 % interval", UNITS, end="sensitivity_high"),
    "from_lr": Column("from", "{:g}"),
    "to_lr": Column("to", "{:g}"),
    "score": Column("score", UNITS),
    "reaching": Column("seeds that reach it"),
    "updates": Column("updates", "{:,.0f}", "not reached"),
    "minutes": Column("minutes", "{:.1f}", UNKNOWN),
    "least": Column("least loss", "{:.3f}", UNKNOWN),
    "norm_parameters": Column("of norms"),
    "updates_per_second": Column("updates/s", "{:.2f}", UNKNOWN),
    "peak_memory": Column("peak host memory, MiB", "{:,.0f}", UNKNOWN),
    "value": Column("value", "{:.3g}"),
    "stage": Column("in"),
    "progress": Column("it had reached"),
}
"""Other columns keep their name and values."""
ENDS = {column.end for column in COLUMNS.values()}
LEFT = {"arm", "baseline", "verdict", "outcome", "quantity", "note", "state", "reason", "commit"}
"""The titles of columns of text; the others are aligned to the right."""


def formatted(table: pd.DataFrame, metric: Metric, outcome: str = SCORE) -> pd.DataFrame:
    """A table as text, with the titles of its columns.

    Args:
        outcome: the outcome of all rows, for a table without a column ``outcome``.
    """
    outcomes = table.get("outcome", pd.Series(outcome, table.index))
    shown: dict[str, list[str]] = {}
    for name in table.columns.difference(ENDS, sort=False):
        column = COLUMNS.get(name, Column(str(name).replace("_", " ")))
        if name == "outcome":
            shown[name] = [outcome_title(each, metric) for each in outcomes]
        else:
            ends = [table[end] for end in (name, column.end) if end]
            shown[column.title] = [
                _joined([_cell(value, column, of_row, metric) for value in values])
                for of_row, *values in zip(outcomes, *ends)
            ]
    return pd.DataFrame(shown)


def _joined(ends: Sequence[str]) -> str:
    return NOTHING if NOTHING in ends else " to ".join(ends)


def _cell(value: Any, column: Column, outcome: str, metric: Metric) -> str:
    """The text of a value; an integer has no decimal point, also if pandas made it a float."""
    if isinstance(value, str):
        return str(value) or column.missing
    if pd.isna(value):
        return column.missing
    if column.form == P:
        return p_text(value)
    if column.form in (UNITS, SIGNED):
        sign = "+" if column.form == SIGNED else ""
        if outcome in (*LOSSES, *metric.losses):
            return f"{value:{sign}.{LOSS_DIGITS}f}"
        return metric.text(value, sign)
    if column.form:  # of numbers like these, only that of seeds can be infinite
        return "none is enough" if math.isinf(value) else column.form.format(value)
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def p_text(value: float | None) -> str:
    """p with three decimal places, or more if rounding would hide on which side of 5 % it is."""
    if value is None or pd.isna(value):
        return NOTHING
    if value < 0.0005:
        return "<0.001"
    text = f"{value:.3f}"
    return f"{value:.6f}".rstrip("0") if float(text) == LEVEL else text


def outcome_title(outcome: str, metric: Metric) -> str:
    """The title of an outcome: that of the metric for ``score``, a loss with its unit."""
    titles = {
        "score": metric.title,
        "valid_loss": f"least validation loss, {metric.loss_unit}",
        "train_loss": f"final training loss, {metric.loss_unit}",
    }
    return titles.get(outcome, metric.columns.get(outcome, outcome))


# --- the tables of the page ---------------------------------------------------------------------


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        name: the name of its files and of its anchor in the page.
        text: see :func:`formatted`.
        note: a note on its tests.
    """

    name: str
    caption: str
    text: pd.DataFrame
    note: str = ""


def tables_of(
    study: Study, data: Path | None = None, loss: float | None = None, tuned: Tuned | None = None
) -> dict[str, Table]:
    """The tables of the page by name, without empty ones.

    Args:
        data: the prepared corpus, for the references of the tests on translations.
        loss: the validation loss for the table of the time to reach it.
        tuned: the trials and the chosen value of each arm, if the arms were tuned.
    """
    metric = study.metric
    made: dict[str, Table] = {}

    def add(
        name: str, caption: str, data: pd.DataFrame, note: str = "", outcome: str = SCORE
    ) -> None:
        if len(data):
            made[name] = Table(name, caption, formatted(data, metric, outcome), note)

    primary = compare_primary(study.runs, study.primary)
    declared = " and ".join(dict.fromkeys(primary["declared"]))
    caption = f"Comparisons that the study declares, {declared}."
    note = " ".join(filter(None, (missing_note(primary, study), test_note(primary))))
    add("primary", caption, primary_table(primary), note)
    comparisons = comparisons_of(study)
    for outcome, of_outcome in comparisons.groupby("outcome", sort=False):
        title = outcome_title(str(outcome), metric)
        title += f", mean over {study.trained} of every run" if outcome == "train_loss" else ""
        add(
            f"comparison-{outcome}".replace("_", "-"),
            f"Every arm against its baseline: {title}.",
            outcome_table(of_outcome, study),
            " ".join(filter(None, (missing_note(of_outcome, study), test_note(of_outcome)))),
            str(outcome),
        )
    scores = comparisons[comparisons["outcome"] == SCORE]
    needed = ["seeds_paired", "seeds_unpaired"]
    add(
        "power",
        f"Seeds per arm with which a t test shows a difference of {metric.of_interest:g} in "
        f"{metric.title} at the 5 % level with a power of 80 %, by the deviations of each pair.",
        scores[["arm", "baseline", *needed]].dropna(how="all", subset=needed),
    )
    over_all = resolution(scores, metric.of_interest, split_ratio(study.runs))
    add("resolution", "The same over all arms.", over_all)
    if metric.keeps_texts and data is not None:
        sentences = compare_translations(study, read_references(study, data))
        add(
            "sentences",
            "The same trained models on other sentences.",
            sentences[["arm", "seed", "verdict", "difference", "p", "p_holm", "control_p"]],
            f"Tests: {'; '.join(distinct(sentences['signature']))}.",
        )
    if loss is not None:
        add(
            "reached",
            f"When the validation loss was {loss:.3f} or less for the first time, means over the "
            "finished seeds that reach it.",
            reached_table(study, loss),
        )
    add("speed", "Speed and size, means over seeds.", speed_table(study))
    failures = study.failures[["arm", "seed", "state", "stage", "progress", "reason"]]
    add("failures", "Failed and diverged runs.", failures)
    runs = study.runs[["arm", "seed", "score"]].assign(commit=study.commits)
    add("runs", "Every run.", runs.assign(date=study.runs["date"]))
    if tuned is not None:
        add(
            "tuned",
            f"The chosen {tuned.key} of each arm, with the next best one.",
            chosen_table(tuned.trials, tuned.chosen),
            "A curve is flat where the next best value is behind by less than the standard "
            "deviation between seeds.",
            OUTCOME,
        )
        add(
            "sensitivity",
            f"Sensitivity to {tuned.key}.",
            learning_rate_sensitivity(tuned.trials),
            "The mean over the grid of min(loss, loss at the start) minus the least loss (Wortsman "
            "et al. 2023), with its 95 % interval over seeds. The worst loss of any trial stands "
            "for the loss at the start. An arm that trains at no value is not sensitive to it "
            "either; its loss is in the table before.",
            OUTCOME,
        )
    return made


def comparisons_of(study: Study) -> pd.DataFrame:
    """The comparison of every arm with its baseline in every outcome, the score first."""
    outcomes = [SCORE, *(loss for loss in LOSSES if study.runs[loss].notna().any())]
    tables_of = [
        compare_arms(study.runs, study.pairs, outcome, study.primary) for outcome in outcomes
    ]
    return pd.concat(tables_of, ignore_index=True)


def comparisons_csv(study: Study) -> str:
    """All comparisons as CSV, the declared ones first."""
    both = [compare_primary(study.runs, study.primary), comparisons_of(study)]
    table = pd.concat([table for table in both if len(table)]).drop_duplicates(
        ["arm", "baseline", "outcome"]
    )
    table["by_seed"] = table["by_seed"].map(lambda values: " ".join(map("{:.10g}".format, values)))
    return str(table.to_csv(index=False, float_format="%.10g"))


COMPARED = ["difference", "difference_low", "difference_high", "p", "p_permutation", "p_holm"]


def primary_table(comparisons: pd.DataFrame) -> pd.DataFrame:
    """The shown columns of :func:`compare_primary`; n is the number of pairs, if any."""
    pairs = comparisons["by_seed"].map(len)
    comparisons = comparisons.assign(n=comparisons["n"].mask(pairs > 0, pairs))
    columns = ["arm", "baseline", "verdict", "outcome", "n", *COMPARED]
    columns += [] if comparisons["margin"].isna().all() else ["margin"]
    return comparisons[columns]


def outcome_table(comparisons: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The shown columns of :func:`compare_arms`; arms without a result come last.

    Arms that have results, but no value of the outcome, are left out.
    """
    comparisons = comparisons[comparisons["n"] > 0]
    columns = ["arm", "verdict", "n", "mean", "standard_deviation", "low", "high", *COMPARED]
    own = comparisons["arm"] == comparisons["baseline"]
    comparisons = comparisons.assign(baseline=comparisons["baseline"].mask(own, ""))
    if comparisons.loc[~own, "baseline"].nunique() > 1:
        columns.insert(columns.index("difference"), "baseline")
    rows = comparisons[columns].to_dict("records")
    none = {"verdict": NO_RESULT, "n": 0, "baseline": ""}
    rows += [{"arm": arm, **none} for arm in study.failed_arms]
    table = study.by_placement(pd.DataFrame(rows, columns=columns))
    if len(study.failures):
        counts = study.failures.groupby(["arm", "state"]).size().reset_index(name="count")
        texts = (counts["count"].astype(str) + " " + counts["state"]).groupby(counts["arm"])
        failed = table["arm"].map(texts.agg(", ".join))
        table.insert(columns.index("n") + 1, "no result", failed.fillna(""))
    return table


def missing_note(comparisons: pd.DataFrame, study: Study) -> str:
    """A note on the arms of a table with runs that have no value of its outcome; may be empty."""
    parts = []
    for row in comparisons.to_dict("records"):
        seeds = study.runs["seed"][study.runs["arm"] == row["arm"]].nunique()
        if row["n"] < seeds:
            parts.append(f"{row['arm']} ({seeds - row['n']} of {seeds} seeds)")
    if not parts:
        return ""
    return (
        "Runs without a value of this outcome are left out, and arms with none are neither "
        f"described nor tested: {', '.join(distinct(parts))}."
    )


TESTS = {
    "paired t": "Student's t test of the differences by seed",
    "paired t, overlapping splits": "Student's t test of the differences by seed, with the "
    "variance that overlapping random splits need (Nadeau and Bengio 2003)",
    "Welch": "Welch's t test of independent samples",
}
"""The tests in words."""
EQUIVALENCE_IN_WORDS = "two one-sided tests of equivalence within the margin, by "


def test_note(comparisons: pd.DataFrame) -> str:
    """A note on the tests in a table of comparisons; empty if nothing is tested."""
    tested = comparisons[comparisons["p"].notna()]
    if tested.empty:
        return ""
    names = []
    for test in tested["test"].unique():
        words = TESTS[test.removeprefix(EQUIVALENCE_BY)]
        names.append(EQUIVALENCE_IN_WORDS + words if test.startswith(EQUIVALENCE_BY) else words)
    kind = "exact"
    if not tested["exact"].all():
        kind = "of a fixed sample of the permutations where there are too many"
    others = int((tested["declared"] == "").sum())
    parts = ["all comparisons that the study declares"] if others < len(tested) else []
    parts += [f"the {others} exploratory comparisons of this table"] if others else []
    return (
        f"p is of {' or '.join(names)}; p (permutation) of the permutation test, {kind}. p (Holm) "
        f"is p corrected over its family, {' or '.join(parts)}. The verdict follows it at the 5 % "
        "level. Intervals are not corrected."
    )


def least_loss(study: Study) -> float | None:
    """A validation loss that every seed of the baseline reaches; None without curves.

    It is the maximum over seeds of the lowest loss. The final loss is not suitable: if models
    overfit, it may be higher than at the start.
    """
    losses = study.runs.loc[study.runs["arm"] == study.baseline, "valid_loss"].dropna()
    return None if losses.empty else float(losses.max())


def reached_table(study: Study, loss: float) -> pd.DataFrame:
    """The time until the runs of each arm first have a validation loss of at most ``loss``.

    Returns:
        columns ``arm``; ``reaching``, the number of runs that reach it, of how many; ``updates``
        and ``minutes``, means over these runs, where all updates of a run count as equally long;
        and ``least``, the lowest loss of any run.
    """
    curves = study.curves[study.curves["subset"] == "valid"].dropna(subset="loss")
    first = curves[curves["loss"] <= loss].drop_duplicates(RUN_KEY)
    runs = study.runs.merge(first[[*RUN_KEY, "updates"]], how="left", on=RUN_KEY)
    runs["seconds"] = runs["training.seconds"] * runs["updates"] / runs["training.updates"]
    reaching = runs.dropna(subset="updates").groupby("arm")
    started = pd.concat([runs["arm"], study.failures["arm"]]).value_counts()
    table = pd.DataFrame(
        {
            "reaching": reaching.size().reindex(study.names, fill_value=0).astype(str),
            "updates": reaching["updates"].mean(),
            "minutes": reaching["seconds"].mean(skipna=False) / 60,
            "least": runs.groupby("arm")["valid_loss"].min(),
        },
        index=pd.Index(study.names, name="arm"),
    )
    table["reaching"] += " of " + started.reindex(table.index).astype(str)
    return table.reset_index()


def speed_table(study: Study) -> pd.DataFrame:
    """The score, size, speed and memory of each arm: means over seeds."""
    arms = study.runs.groupby("arm", sort=False)

    def mean(column: str) -> pd.Series:
        return arms[column].mean(skipna=False)

    table = pd.DataFrame(
        {
            "score": mean("score"),
            "parameters": arms["model.parameters"].agg(span),
            "norm_parameters": arms["model.norm_parameters"].agg(span),
            "updates": mean("training.updates"),
            "updates_per_second": mean("training.updates_per_second"),
            "minutes": mean("training.seconds") / 60,
            "peak_memory": mean("training.peak_memory") / 2**20,
        }
    )
    return table.reset_index()


def content_of(
    study: Study,
    data: Path | None = None,
    loss: float | None = None,
    tuned: Tuned | None = None,
) -> dict[str, Any]:
    """The variables of the template; see :func:`tables_of`.

    If ``loss`` is None, it is the lowest one of the baseline.
    """
    runs, metric = study.runs, study.metric
    counts = runs["arm"].value_counts()
    figures: dict[str, list[Figure]] = defaultdict(list)
    for section, drawing in FIGURES.values():
        figures[section] += [drawn] if (drawn := drawing(study)) is not None else []
    if tuned is not None:
        outcome = f"least validation loss, {metric.loss_unit}"
        figures["tuning"] = [sensitivity_figure(tuned.trials, tuned.chosen, outcome, tuned.key)]
    versions = runs[[name for name in runs if name.startswith("versions.")]]
    versions.columns = [name.partition(".")[2] for name in versions]
    pairs = runs["data.training_pairs"].dropna()
    return {
        "study": study,
        "metric": metric,
        "corpus": runs["data.corpus"].iloc[0],
        "pairs": span(pairs.astype(int)) if len(pairs) else "",
        "checksums": [text[:16] for text in distinct(runs["data.checksum"])],
        "versions": distinct(
            ", ".join(f"{name} {number}" for name, number in sorted(row.items()))
            for row in versions.to_dict("records")
        ),
        "kernels": distinct(runs.get(f"settings.model.{KERNELS_FOUND}", [])),
        "common": [f"{key}={value}" for key, value in study.common.items()],
        "labels": distinct(runs[f"scores.{metric.headline}.label"]),
        "unequal": counts.nunique() > 1,
        "one_seed": counts.min() == 1,
        "tables": tables_of(study, data, least_loss(study) if loss is None else loss, tuned),
        "tuned": tuned,
        "declared": " and ".join(dict.fromkeys(each.declared for each in study.primary)),
        "loss_given": loss is not None,
        "records": sum(record_of(run) is not None for run in runs.to_dict("records")),
        "scored": distinct(study.commits),
        "figures": figures,
    }


# --- the page and its files ---------------------------------------------------------------------


def render(content: dict[str, Any]) -> dict[str, str]:
    """Render the template as ``index.html`` and ``report.md``."""
    import jinja2
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    # importing fairseq lowers the level of the root logger
    logging.getLogger("markdown_it").setLevel(logging.WARNING)
    loader = jinja2.FileSystemLoader(TEMPLATES)
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    blocks |= {"loader": loader, "undefined": jinja2.StrictUndefined}
    html = jinja2.Environment(autoescape=True, **blocks)
    # names may contain markup, which must be escaped in both formats
    text = jinja2.Environment(
        finalize=lambda value: value if isinstance(value, Markup) else _plain(str(value)), **blocks
    )
    content = {**content, "command": Markup(content["command"])}
    drawn = {**content, "command": Markup(content["figure_command"])}
    inserted: list[tuple[str, str]] = []  # in HTML and in Markdown

    def insert(in_html: str, in_markdown: str) -> Markup:
        inserted.append((in_html, in_markdown))
        return Markup(f"inserted-{len(inserted) - 1}-here")

    def table(name: str) -> Markup:
        """The table of this name, if there is one."""
        if name not in content["tables"]:
            return Markup("")
        each = content["tables"][name]
        in_html = html.get_template("table.html.jinja").render(table=each, left=LEFT)
        return insert(in_html, _plain(table_markdown(each)))

    def figure(each: Figure) -> Markup:
        in_html = html.get_template("figure.html.jinja").render(drawn, figure=each)
        return insert(in_html, text.get_template("figure.md.jinja").render(drawn, figure=each))

    def drawings(section: str) -> Markup:
        """The figures of a section, a paragraph each."""
        return Markup("\n\n").join(map(figure, content["figures"][section]))

    page = text.get_template("report.md.jinja").render(content, table=table, drawings=drawings)
    mark, body = r"inserted-(\d+)-here", MarkdownIt().render(page)
    body = re.sub(f"<p>{mark}</p>", lambda match: inserted[int(match[1])][0], body)
    page = re.sub(mark, lambda match: inserted[int(match[1])][1], page)
    return {
        "index.html": html.get_template("page.html.jinja").render(content, body=body) + "\n",
        "report.md": re.sub(r"\n{3,}", "\n\n", page).strip() + "\n",
    }


def _plain(text: str) -> str:
    """Text with HTML's special characters escaped."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def table_markdown(table: Table) -> str:
    """A table in Markdown, with its caption and its note."""
    align = ["---" if name in LEFT else "---:" for name in table.text]
    parts = [table.caption, markdown(table.text, align), table.note]
    return "\n\n".join(part for part in parts if part)


def write_files(contents: Mapping[str, str | bytes], out: Path) -> list[Path]:
    """Write files by name into a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {out}: {error.strerror}") from error
    for name, content in contents.items():
        with atomic_write(out / name) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    return [out / name for name in contents]


def figure_files(figures: Iterable[Figure]) -> dict[str, str]:
    """The SVG and CSV files of figures, by name."""
    files: dict[str, str] = {}
    for drawn in figures:
        files |= {f"{drawn.name}.svg": drawn.standalone, f"{drawn.name}.csv": drawn.csv}
    return files


def command_of(args: argparse.Namespace, *names: str) -> str:
    """The command with these of its options, as far as they were given."""
    argv = ["norm-plugin", "report", *map(str, args.folders)]
    for name in names:
        value = getattr(args, name)
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                argv += [f"--{name}", "=".join(each) if name == "label" else str(each)]
    return shlex.join(argv)


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.rpartition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"it is {text!r} and must be A=B")
    return old, new


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command ``report``."""
    parser = argparse.ArgumentParser(
        prog="norm-plugin report",
        description="Write a page on a comparison: OUT/index.html, OUT/report.md and "
        "OUT/comparisons.csv.",
    )
    add = parser.add_argument
    add(
        "folders", nargs="+", type=Path, metavar="RESULTS", help="folder of an experiment's results"
    )
    add("--out", type=Path, default=Path("report"), help="default: %(default)s")
    text = f"the norm or arm that the others are compared with (default: {DEFAULT_BASELINE}; "
    text += "unless that is one arm, the first baseline that the study declares)"
    add("--baseline", metavar="NORM", help=text)
    add("--study", metavar="STUDY", help="the study file that declares the primary comparisons")
    text = "a key in which runs may differ, such as optimization.lr, or a section: compare each "
    text += "arm at its best value, and show all values. If repeated, arms differ in the values of "
    add("--vary", action="append", default=[], metavar="KEY", help=f"{text}all keys")
    text = "rename the arm A to B; may be repeated"
    add("--label", action="append", type=_renaming, default=[], metavar="A=B", help=text)
    add("--title", help="title of the page (default: the names of the experiments)")
    text = "the prepared corpus, such as work/data/multi30k-2000, to also test differences of "
    add("--data", type=Path, metavar="DIR", help=f"{text}single runs on their translations")
    text = "show the time to this validation loss (default: the lowest one of the baseline)"
    add("--loss", type=float, help=text)
    text = "latex also writes LaTeX tables, PDF figures and report.tex (default: %(default)s)"
    add("--format", choices=(HTML, LATEX), default=HTML, help=text)
    add("--figure", choices=FIGURES, help="write only this figure and its data")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``report``."""
    args = parse(argv)
    for package in ("jinja2", "markdown_it", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise CommandError(f"this needs {package}; pip install 'norm_plugin[analysis]'")
    file = None if args.study is None else read_study_file(study_path(args.study))
    study = read_study(args.folders, args.baseline, dict(args.label), file, args.vary)
    tuned = None
    if len(args.vary) == 1:
        study, tuned = tuned_on_itself(study, args.vary[0])
    elif file is not None and file.path.with_suffix(TUNED).exists():
        tuned = read_tuned(study, file.path.with_suffix(TUNED))
    if args.figure is not None:
        drawn = FIGURES[args.figure][1](study)
        if drawn is None:
            raise CommandError(f"there is no data for the figure {args.figure} in these results")
        print(*write_files(figure_files([drawn]), args.out), sep="\n")
        return 0
    content = {
        **content_of(study, args.data, args.loss, tuned),
        "command": command_of(args, *OF_STUDY, "data", "loss", "title", "out"),
        "figure_command": command_of(args, *OF_STUDY, "out"),
        "title": args.title or " and ".join(distinct(study.runs["experiment"])),
        "commit": short_commit(git_state(Path(__file__).parent)),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    figures = [drawn for of_section in content["figures"].values() for drawn in of_section]
    files: dict[str, str | bytes] = {**render(content), **figure_files(figures)}
    files["comparisons.csv"] = comparisons_csv(study)
    if args.format == LATEX:
        for name, table in content["tables"].items():
            caption = f"{table.caption} {table.note}".strip()
            files[f"{name}.tex"] = latex_table(name, caption, table.text, LEFT)
        files |= {f"{drawn.name}.pdf": drawn.pdf for drawn in figures}
        files["report.tex"] = document(content["title"], content["tables"], figures)
    written = write_files(files, args.out)
    print(f"{len(study.runs)} runs of {len(study.arms)} arms: {written[0]}")
    return 0
