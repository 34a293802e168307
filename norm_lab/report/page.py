"""The report of a comparison: verdicts, intervals, curves and speed, as HTML, Markdown and LaTeX.

    norm-plugin report work/results/multi30k_cpu
    norm-plugin report encoder_norms --out studies/encoder_norms

``index.html`` is self-contained. ``report.md`` has the same content with its figures as files; in
the folder of a study it is ``README.md``. ``comparisons.csv`` has the numbers behind the verdicts.
``--format latex`` also writes each table as LaTeX, each figure as PDF, and ``report.tex`` with all.
The text of the page is in ``templates/report.md.jinja``; figures.py makes its figures.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import re
import secrets
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from norm_lab.config.studies import (
    STUDY_FILE,
    question,
    read_study_file,
    results_folder,
    study_name,
    study_path,
    tuned_path,
)
from norm_lab.report.figure import FIGURES, SECTIONS, Figure, figure_files, write_files
from norm_lab.report.figures import sensitivity_figure
from norm_lab.report.latex import document, latex_table
from norm_lab.report.parsers import LATEX, report_parser
from norm_lab.report.records import record_of
from norm_lab.report.tables import (
    comparisons_csv,
    conclusions,
    least_loss,
    table_markdown,
    tables_of,
    test_note,
)
from norm_lab.report.text import LEFT, distinct, escaped, span
from norm_lab.results.folder import RUNS
from norm_lab.results.provenance import git_state, short_commit
from norm_lab.study.comparable import KERNELS_FOUND
from norm_lab.study.reproduction import conditions, equal_scores
from norm_lab.study.study import Study, read_study
from norm_lab.study.tuning import Tuned, read_tuned, select_best_per_arm
from norm_plugin.io.command_line import CommandError, UsageError, did_you_mean

TEMPLATES = Path(__file__).parent / "templates"
OF_STUDY = ("baseline", "study", "vary", "label")
"""The options that determine the study."""
REPORT, README = "report.md", "README.md"
"""The report in Markdown, and its name in the folder of a study, where it is shown first."""
PUBLISHED = (
    "These are the published runs of {name}. `norm-plugin study {name}` makes your own, in "
    "work/studies/{name}, and its report compares them with these."
)
CONTENTS = "<nav></nav>"
"""The place of the list of sections while a page is being made."""
MARKS = {
    "index.html": b'<meta name="generator" content="norm-plugin report">',
    README: b"\n## How this page was made\n",
    ".svg": b'<svg role="img" width="100%"',
}
"""What each page and figure of the command has in it; others are not replaced."""


def content_of(
    study: Study,
    data: Path | None = None,
    loss: float | None = None,
    tuned: Tuned | None = None,
    published: Study | None = None,
) -> dict[str, Any]:
    """Return the variables of the template; see :func:`tables_of`.

    If ``loss`` is None, it is the lowest one of the baseline.
    """
    runs, metric = study.runs, study.metric
    counts = runs["arm"].value_counts()
    figures: dict[str, list[Figure]] = {section: [] for section in SECTIONS}
    for section, drawing in FIGURES.values():
        hidden = study.is_smoke and section == "verdicts"
        drawn = None if hidden else drawing(study)
        figures[section] += [] if drawn is None else [drawn]
    if tuned is not None:
        figures["tuning"] = [sensitivity_figure(study, tuned)]
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
        "experiments": distinct(runs["experiment"]),
        "labels": merged(distinct(runs[f"scores.{metric.headline}.label"])),
        "conclusions": [] if study.is_smoke else conclusions(study),
        "tests": "" if study.is_smoke else test_note(study.comparisons.all, one_table=False),
        "unequal": counts.nunique() > 1,
        "one_seed": counts.min() == 1,
        "tables": tables_of(
            study, data, least_loss(study) if loss is None else loss, tuned, published
        ),
        "conditions": [] if published is None else conditions(study, published),
        "equal": None if published is None else equal_scores(study, published),
        "tuned": tuned,
        "declared": " and ".join(dict.fromkeys(each.declared for each in study.primary)),
        "loss_given": loss is not None,
        "records": sum(record_of(run) is not None for run in runs.to_dict("records")),
        "scored": distinct(study.commits),
        "figures": figures,
    }


def merged(texts: Sequence[str]) -> str:
    """Return texts as one: where they differ in one word, ``penalty 1.4/1.6``."""
    words = [text.split(" ") for text in texts]
    if len({len(each) for each in words}) != 1:
        return "; ".join(texts)
    return " ".join("/".join(dict.fromkeys(at)) for at in zip(*words))


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
        finalize=lambda value: value if isinstance(value, Markup) else escaped(str(value)),
        **blocks,
    )
    inserted: list[tuple[str, str]] = []  # in HTML and in Markdown
    token = secrets.token_hex(8)  # no name can contain it

    def insert(in_html: str, in_markdown: str) -> Markup:
        inserted.append((in_html, in_markdown))
        return Markup(f"inserted-{token}-{len(inserted) - 1}-here")

    def table(name: str) -> Markup:
        """Return the table of this name, if there is one."""
        if name not in content["tables"]:
            return Markup("")
        each = content["tables"][name]
        in_html = html.get_template("table.html.jinja").render(table=each, left=LEFT)
        return insert(in_html, table_markdown(each))

    def figure(each: Figure) -> Markup:
        in_html = html.get_template("figure.html.jinja").render(content, figure=each)
        short, title = escaped(each.title.partition(". ")[0]), escaped(each.title)
        return insert(in_html, f"![{short}]({each.name}.svg)\n\n{title}")

    def drawings(section: str) -> Markup:
        """Return the figures of a section, a paragraph each, and their notes."""
        of_section = content["figures"][section]
        notes = dict.fromkeys(escaped(each.note) for each in of_section if each.note)
        return Markup("\n\n").join([*map(figure, of_section), *map(Markup, notes)])

    def drawing(name: str) -> Markup:
        """Return the figure of this name, if there is one."""
        every = (each for of_section in content["figures"].values() for each in of_section)
        return next((figure(each) for each in every if each.name == name), Markup(""))

    titles: list[str] = []
    end: list[str] = []  # what closes the current section

    def heading(title: str, folded: bool = False) -> Markup:
        """Begin a section, which may be folded."""
        closed, anchor = done(), title.lower().replace(" ", "-")
        titles.append(f'<a href="#{anchor}">{title}</a>')
        if not folded:
            in_html = f'<h2 id="{anchor}">{title}</h2>'
            return closed + "\n\n" + insert(in_html, f"## {title}")
        end.append("</details>")
        # a browser opens what contains the target of a link, but not what is its parent
        in_html = (
            f'<details class="section"><summary><h2>{title}</h2></summary><a id="{anchor}"></a>'
        )
        in_markdown = f'## {title}\n\n<details markdown="1"><summary>Show</summary>'
        return closed + "\n\n" + insert(in_html, in_markdown)

    def done() -> Markup:
        """End the current section."""
        return insert(end[-1], end.pop()) if end else Markup("")

    def contents() -> Markup:
        """Return the place of the list of sections; Markdown has none, as its viewers make one."""
        return insert(CONTENTS, "")

    functions = [table, drawing, drawings, heading, contents, done]
    named = {function.__name__: function for function in functions}
    page = text.get_template("report.md.jinja").render(content, **named)
    body = MarkdownIt("commonmark", {"html": False}).render(page)
    mark = rf"inserted-{token}-(\d+)-here"
    body = re.sub(f"<p>{mark}</p>", lambda match: inserted[int(match[1])][0], body)
    body = body.replace(CONTENTS, f'<nav aria-label="Contents">{" ".join(titles)}</nav>')
    page = re.sub(mark, lambda match: inserted[int(match[1])][1], page)
    return {
        "index.html": html.get_template("page.html.jinja").render(content, body=body) + "\n",
        REPORT: re.sub(r"\n{3,}", "\n\n", page).strip() + "\n",
    }


def command_of(args: argparse.Namespace, *names: str) -> str:
    """Return the command with those of its options ``names`` that were given."""
    argv = ["norm-plugin", "report", *map(str, args.folders)]
    for name in names:
        value = getattr(args, name)
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                argv += [f"--{name}", "=".join(each) if name == "label" else str(each)]
    return shlex.join(argv).replace("\n", "'$'\\n''")  # in one line, as the fence around it needs


def _check_own(out: Path, names: Collection[str]) -> None:
    """Raise CommandError if a folder has a file of these names which the command did not write.

    A file without a mark, as ``scores.csv``, is the command's if one with a mark is beside it.
    """
    there = [out / name for name in names if (out / name).is_file()]
    marks = {path: MARKS.get(path.name, MARKS.get(path.suffix)) for path in there}
    marked = {path: mark in path.read_bytes() for path, mark in marks.items() if mark is not None}
    foreign = [path for path in there if not marked.get(path, any(marked.values()))]
    if foreign:
        raise CommandError(f"{foreign[0]} is not of norm-plugin report; choose another --out")


def is_study(folder: Path) -> bool:
    """Return whether a folder is that of a study."""
    return (folder / STUDY_FILE).is_file()


def is_published(folders: Sequence[Path]) -> bool:
    """Return whether these are the folder of one study, with its published runs."""
    return len(folders) == 1 and is_study(folders[0]) and (folders[0] / RUNS).is_file()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``report``."""
    args = report_parser().parse_args(argv)
    if args.figure not in (None, *FIGURES):
        raise UsageError(f"there is no figure {args.figure}; {did_you_mean(args.figure, FIGURES)}")
    if args.data is not None and not args.data.is_dir():
        raise CommandError(f"--data is {args.data}, which is not a folder")
    folders = [results_folder(name) for name in args.folders]
    if args.study is not None:
        file = read_study_file(study_path(args.study))
    elif len(folders) == 1 and is_study(folders[0]):
        file = read_study_file(folders[0] / STUDY_FILE)
    else:
        file = None
    choosing, labels = len(args.vary) == 1, dict(args.label)
    study = read_study(
        folders,
        args.baseline,
        {} if choosing else labels,  # before the choice, an arm has a row per value
        file,
        args.vary,
        declared_labels=not choosing,
    )
    tuned = None
    if choosing:
        declared = {} if file is None else file.labels
        study, tuned = select_best_per_arm(study, args.vary[0], labels, declared)
    elif file is not None and tuned_path(file.path).exists():
        tuned = read_tuned(study, tuned_path(file.path))
    published, note = None, ""
    if is_published(folders):
        note = PUBLISHED.format(name=folders[0].name)
        print(note)
    elif file is not None and is_published([file.path.parent]) and not (choosing or study.is_smoke):
        published = read_study(
            [file.path.parent], args.baseline, labels, file, declared_labels=True
        )
    if args.figure is not None:
        drawn = FIGURES[args.figure][1](study)
        if drawn is None:
            raise CommandError(f"these results have no data for the figure {args.figure}")
        own = figure_files([drawn])
        _check_own(args.out, own)
        print(*write_files(own, args.out), sep="\n")
        return 0
    name = "" if file is None or choosing else study_name(file.path)
    content = {
        **content_of(study, args.data, args.loss, tuned, published),
        "published": note,
        "command": command_of(args, *OF_STUDY, "data", "loss", "title", "out"),
        "figure_command": command_of(args, *OF_STUDY, "out"),
        "title": args.title or name or " and ".join(distinct(study.runs["experiment"])),
        "question": "" if file is None else question(file.path),
        "superseded": "" if file is None else file.superseded,
        "setting": "" if file is None else file.setting,
        "tuned_keys": () if file is None else file.tuned,
        "commit": short_commit(git_state(Path(__file__).parent)),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    figures = [drawn for of_section in content["figures"].values() for drawn in of_section]
    files: dict[str, str | bytes] = {**render(content), **figure_files(figures)}
    if not study.is_smoke:
        files["comparisons.csv"] = comparisons_csv(study)
    if is_study(args.out):
        files[README] = files.pop(REPORT)
    if args.format == LATEX:
        for name, table in content["tables"].items():
            caption = " ".join(filter(None, (table.caption, table.note, table.tests)))
            files[f"{name}.tex"] = latex_table(name, caption, table.text, LEFT)
        files |= {f"{drawn.name}.pdf": drawn.pdf for drawn in figures}
        files["report.tex"] = document(content["title"], content["tables"], figures)
    _check_own(args.out, files)
    written = write_files(files, args.out)
    print(f"{len(study.runs)} runs of {len(study.arms)} arms: {written[0]}")
    return 0
