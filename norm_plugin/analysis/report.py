"""The report of a comparison: verdicts, intervals, curves and speed, as HTML, Markdown and LaTeX.

    norm-plugin report results/multi30k_cpu --out report/

``index.html`` is self-contained. ``report.md`` has the same content with its figures as files, and
``comparisons.csv`` the numbers behind the verdicts. ``--format latex`` also writes each table as
LaTeX, each figure as PDF, and ``report.tex`` with all of them. The text of the page is in
``templates/report.md.jinja``; tables.py and figures.py make its tables and figures.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from norm_plugin.analysis import tables, tuning
from norm_plugin.analysis.figures import FIGURES, Figure, sensitivity_figure
from norm_plugin.analysis.latex import latex_files
from norm_plugin.analysis.records import record_of
from norm_plugin.analysis.stats import compare_arms, compare_primary, resolution
from norm_plugin.analysis.study import DEFAULT_BASELINE, Study, read_study
from norm_plugin.analysis.tables import SAME_SPEED, Table, commits, distinct, markdown, span
from norm_plugin.analysis.translations import compare_translations, read_references
from norm_plugin.analysis.tuning import Tuned, read_tuned, tuned_on_itself
from norm_plugin.commands.command_line import CommandError, replacing
from norm_plugin.experiments.collect import git_state, short_commit
from norm_plugin.experiments.metrics import Metric
from norm_plugin.experiments.studies import LOSSES, SCORE, read_study_file, study_path
from norm_plugin.experiments.tune import OUTCOME

TEMPLATES = Path(__file__).parent / "templates"
HTML, LATEX = "html", "latex"
TUNED = ".tuned.json"
"""The suffix of the file that ``norm-plugin tune`` writes beside the file of a study."""


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


def tables_of(
    study: Study, data: Path | None = None, loss: float | None = None
) -> dict[str, Table]:
    """The tables of the page by name, without empty ones.

    Args:
        data: the prepared corpus, for the references of the tests on translations.
        loss: the validation loss for the table of the time to reach it.
    """
    metric = study.metric
    made: dict[str, Table] = {}

    def add(
        name: str, caption: str, data: pd.DataFrame, note: str = "", outcome: str = SCORE
    ) -> None:
        if len(data):
            made[name] = Table(name, caption, data, metric, note, outcome)

    primary = compare_primary(study.runs, study.primary)
    if len(primary):
        declared = " and ".join(dict.fromkeys(primary["declared"]))
        add(
            "primary",
            f"Comparisons that the study declares, {declared}.",
            tables.primary_table(primary),
            tables.test_note(primary),
        )
    comparisons = comparisons_of(study)
    for outcome, of_outcome in comparisons.groupby("outcome", sort=False):
        title = tables.outcome_title(str(outcome), metric)
        add(
            f"comparison-{outcome}".replace("_", "-"),
            f"Every arm against its baseline: {title}.",
            tables.outcome_table(of_outcome, study),
            tables.test_note(of_outcome),
            str(outcome),
        )
    scores = comparisons[comparisons["outcome"] == SCORE]
    add(
        "power",
        f"Seeds an arm with which a t test shows a difference of {metric.of_interest:g} in "
        f"{metric.title} at the 5 % level with a power of 80 %, by the deviations of each pair.",
        scores[["arm", "baseline", *tables.POWER]].dropna(how="all", subset=tables.POWER),
    )
    add("resolution", "The same over all arms.", resolution(scores, metric.of_interest))
    if metric.keeps_texts and data is not None:
        sentences = compare_translations(study, read_references(study, data))
        add(
            "sentences",
            "The same trained models on other sentences.",
            sentences[tables.SENTENCES],
            f"Tests: {'; '.join(distinct(sentences['signature']))}.",
        )
    if loss is not None:
        add(
            "reached",
            f"When the validation loss was {loss:.3f} or less for the first time, means over the "
            "finished seeds that reach it.",
            tables.reached_table(study, loss),
        )
    add("speed", "Speed and size, means over seeds.", tables.speed_table(study))
    add("failures", "Failed and diverged runs.", study.failures[tables.FAILURES])
    runs = study.runs[["arm", "seed", "score"]].assign(commit=commits(study.runs))
    add("runs", "Every run.", runs.assign(date=study.runs["date"]))
    return made


def tuning_tables(tuned: Tuned, metric: Metric) -> dict[str, Table]:
    """The tables of the chosen values and of the sensitivity to them."""
    chosen = Table(
        "tuned",
        f"The chosen {tuned.key} of each arm, with the next best one.",
        tuning.chosen_table(tuned.trials, tuned.chosen),
        metric,
        "A curve is flat where the next best value is behind by less than the standard deviation "
        "between seeds.",
        OUTCOME,
    )
    sensitivity = Table(
        "sensitivity",
        f"Sensitivity to {tuned.key}.",
        tuning.learning_rate_sensitivity(tuned.trials),
        metric,
        "The mean over the grid of min(loss, loss at the start) less the least loss (Wortsman et "
        "al. 2023), with its 95 % interval over seeds. The worst loss of any trial stands for the "
        "loss at the start.",
        OUTCOME,
    )
    return {table.name: table for table in (chosen, sensitivity)}


def content_of(
    study: Study,
    data: Path | None = None,
    loss: float | None = None,
    tuned: Tuned | None = None,
) -> dict[str, Any]:
    """The variables of the template.

    Args:
        data: see :func:`tables_of`.
        loss: see :func:`tables_of`; None for the lowest loss of the baseline.
        tuned: the trials and the chosen value of each arm, if the arms were tuned.
    """
    runs, metric = study.runs, study.metric
    counts = runs["arm"].value_counts()
    target = tables.least_loss(study) if loss is None else loss
    figures: dict[str, list[Figure]] = {section: [] for section, _ in FIGURES.values()}
    for section, drawing in FIGURES.values():
        figures[section] += [drawn] if (drawn := drawing(study)) is not None else []
    figures["tuning"] = []
    if tuned is not None:
        outcome = f"least validation loss, {metric.loss_unit}"
        figures["tuning"] = [sensitivity_figure(tuned.trials, tuned.chosen, outcome, tuned.key)]
    versions = runs[[name for name in runs if name.startswith("versions.")]]
    versions.columns = [name.partition(".")[2] for name in versions]
    pairs = runs["data.training_pairs"].dropna()
    spread = tables.speed_spread(runs)
    return {
        "study": study,
        "metric": metric,
        "baseline": study.baseline,
        "corpus": runs["data.corpus"].iloc[0],
        "pairs": span(pairs.astype(int)) if len(pairs) else "",
        "checksums": [text[:16] for text in distinct(runs["data.checksum"])],
        "versions": distinct(
            ", ".join(f"{name} {number}" for name, number in sorted(row.items()))
            for row in versions.to_dict("records")
        ),
        "common": [f"{key}={value}" for key, value in study.common.items()],
        "labels": distinct(runs[f"scores.{metric.headline}.label"]),
        "unequal": counts.nunique() > 1,
        "one_seed": counts.min() == 1,
        "tables": {
            **tables_of(study, data, target),
            **({} if tuned is None else tuning_tables(tuned, metric)),
        },
        "tuned": tuned,
        "declared": " and ".join(dict.fromkeys(each.declared for each in study.primary)),
        "loss_given": loss is not None,
        "spread": spread if spread > SAME_SPEED else None,
        "records": sum(record_of(run) is not None for run in runs.to_dict("records")),
        "scored": distinct(commits(runs)),
        "figures": figures,
    }


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
    inserted: list[str] = []

    def insert(template: str, **values: Any) -> Markup:
        inserted.append(html.get_template(template).render(drawn, **values))
        return Markup(f"inserted-{len(inserted) - 1}-here")

    def page(**functions: Any) -> str:
        rendered = text.get_template("report.md.jinja").render(content, **functions)
        return re.sub(r"\n{3,}", "\n\n", rendered).strip() + "\n"

    body = MarkdownIt().render(
        page(
            table=lambda table: insert("table.html.jinja", table=table, left=tables.LEFT),
            figure=lambda figure: insert("figure.html.jinja", figure=figure),
        )
    )
    body = re.sub(r"<p>inserted-(\d+)-here</p>", lambda match: inserted[int(match[1])], body)
    return {
        "index.html": html.get_template("page.html.jinja").render(content, body=body) + "\n",
        "report.md": page(
            table=lambda table: Markup(_plain(table_markdown(table))),
            figure=lambda figure: Markup(
                text.get_template("figure.md.jinja").render(drawn, figure=figure)
            ),
        ),
    }


def _plain(text: str) -> str:
    """Text with HTML's special characters escaped."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def table_markdown(table: Table) -> str:
    """A table in Markdown, with its caption and its note."""
    align = ["---" if name in tables.LEFT else "---:" for name in table.text]
    parts = [table.caption, markdown(table.text, align), table.note]
    return "\n\n".join(part for part in parts if part)


def write_files(contents: Mapping[str, str | bytes], out: Path) -> list[Path]:
    """Write files by name into a folder."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {out}: {error.strerror}") from error
    for name, content in contents.items():
        with replacing(out / name) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    return [out / name for name in contents]


def figure_files(figures: Iterable[Figure]) -> dict[str, str]:
    """The SVG and CSV files of figures, by name."""
    files: dict[str, str] = {}
    for drawn in figures:
        files |= {f"{drawn.name}.svg": drawn.standalone, f"{drawn.name}.csv": drawn.csv}
    return files


def commands_of(args: argparse.Namespace) -> dict[str, str]:
    """The command that makes the page, and the command for one figure, without its name."""
    argv = ["norm-plugin", "report", *map(str, args.folders)]
    argv += [] if args.baseline is None else ["--baseline", args.baseline]
    argv += [] if args.study is None else ["--study", args.study]
    argv += [part for key in args.vary for part in ("--vary", key)]
    argv += [part for old, new in args.label for part in ("--label", f"{old}={new}")]
    out = ["--out", str(args.out)]
    more = [] if args.data is None else ["--data", str(args.data)]
    more += [] if args.loss is None else ["--loss", str(args.loss)]
    more += [] if args.title is None else ["--title", args.title]
    return {
        "command": shlex.join([*argv, *more, *out]),
        "figure_command": shlex.join([*argv, *out]),
    }


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
        **commands_of(args),
        "title": args.title or " and ".join(distinct(study.runs["experiment"])),
        "commit": short_commit(git_state(Path(__file__).parent)),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    figures = [drawn for of_section in content["figures"].values() for drawn in of_section]
    files: dict[str, str | bytes] = {**render(content), **figure_files(figures)}
    files["comparisons.csv"] = comparisons_csv(study)
    if args.format == LATEX:
        files |= latex_files(content["title"], list(content["tables"].values()), figures)
    written = write_files(files, args.out)
    print(f"{len(study.runs)} runs of {len(study.arms)} arms: {written[0]}")
    return 0
