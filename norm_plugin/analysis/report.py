"""One page on a comparison: table with tests, curves, speed; as HTML and as Markdown.

    norm-plugin report results/multi30k_cpu --out report/

``index.html`` needs nothing beside it. ``report.md`` shows the same, with its figures as files.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from norm_plugin.analysis.figures import Figure
from norm_plugin.analysis.rows import commit_of
from norm_plugin.analysis.sections import FIGURES, Section, facts_of, sections_of
from norm_plugin.analysis.study import Study, read_study
from norm_plugin.commands.command_line import CommandError, run_command, write_text
from norm_plugin.experiments.provenance import git_state


@dataclass(frozen=True)
class Made:
    """Where a page and its figures come from.

    Attributes:
        command: for the page.
        figure: for one of its figures, whose name follows.
        commit: of the code that drew it.
        date: on which it was drawn.
        scored: the commits that scored its runs.
    """

    command: str
    figure: str
    commit: str
    date: str
    scored: str


TEMPLATES = Path(__file__).parent / "templates"
RAW_HTML = re.compile(r"<(?=[A-Za-z/!?])")
"""How HTML begins, which Markdown takes from a name as it is."""


def write_report(
    study: Study, sections: Sequence[Section], out: Path, title: str, made: Made
) -> list[Path]:
    """Write ``index.html``, ``report.md`` and the figures with their data; the paths written.

    Raises CommandError where ``out`` cannot be written.
    """
    content: dict[str, Any] = {
        "title": title,
        "facts": facts_of(study),
        "sections": sections,
        "made": made,
    }
    texts = {"index.html": _render("report.html.jinja", content)}
    parts = _render("report.md.jinja", content).split("```")  # between fences stand commands
    parts[::2] = [RAW_HTML.sub("&lt;", part) for part in parts[::2]]
    texts["report.md"] = "```".join(parts)
    for section in sections:
        for figure in section.figures:
            texts.update(figure_files(figure))
    return write_files(texts, out)


def figure_files(figure: Figure) -> dict[str, str]:
    """A figure and its data as files, by name."""
    return {f"{figure.name}.svg": figure.standalone, f"{figure.name}.csv": figure.data}


def write_files(texts: dict[str, str], out: Path) -> list[Path]:
    """Write texts by file name into a folder, which is made if it is missing."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make {out}: {error.strerror}") from error
    for name, text in texts.items():
        write_text(out / name, text)
    return [out / name for name in texts]


def require_packages() -> None:
    """Raise CommandError where the extra ``analysis`` is not installed."""
    for name in ("jinja2", "matplotlib"):
        if importlib.util.find_spec(name) is None:
            raise CommandError(f"the report needs {name}; pip install 'norm_plugin[analysis]'")


def _render(template: str, content: dict[str, Any]) -> str:
    import jinja2

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
    study = read_study(args.folders, args.baseline, dict(args.labels))
    if args.figure is not None:
        return only_figure(study, args.figure, args.out)
    title = args.title or " and ".join(sorted({run["experiment"] for run in study.runs}))
    made = made_now(study, args)
    sections = sections_of(study, args.data, args.loss)
    written = write_report(study, sections, args.out, title, made)
    print(f"{len(study.runs)} runs of {len(study.settings)} settings: {written[0]}")
    return 0


def _renaming(text: str) -> tuple[str, str]:
    old, equals, new = text.rpartition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"it is {text!r} and must be A=B")
    return old, new


def only_figure(study: Study, name: str, out: Path) -> int:
    """Write one figure and its data."""
    figure = FIGURES[name](study)
    if figure is None:
        raise CommandError(f"there is no data for the figure {name} in these results")
    print(*write_files(figure_files(figure), out), sep="\n")
    return 0


def made_now(study: Study, args: argparse.Namespace) -> Made:
    """How the page is made by a command with these arguments."""
    words = ["python", "-m", "norm_plugin.analysis.report", *map(str, args.folders)]
    words += ["--baseline", args.baseline]
    words += [word for old, new in args.labels for word in ("--label", f"{old}={new}")]
    figure = shlex.join([*words, "--out", str(args.out), "--figure"])
    words += [] if args.data is None else ["--data", str(args.data)]
    words += [] if args.loss is None else ["--loss", str(args.loss)]
    words += [] if args.title is None else ["--title", args.title]
    return Made(
        shlex.join([*words, "--out", str(args.out)]),
        figure,
        commit_of({"git": git_state(Path(__file__).parent)}),
        datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        ", ".join(study.agreed(commit_of)),
    )


if __name__ == "__main__":
    run_command(main)
