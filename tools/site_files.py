"""The parts of the site that mkdocs.yml leaves to a program: its files, and the order of its pages.

A page keeps its path in the repository, so that its links also work on the site. The pages are
under four tabs: how to use it, and how to contribute, in the order of the README's lists; the
studies; and the papers, in the order in which papers/README.md links them.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
STYLE = ROOT / "docs/site.css"  # mkdocs.yml names it in extra_css
PAGES = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs/*.md", "studies/**/*.md", "papers/*.md"),
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")

ROLE = re.compile(r":(?:class|data|func|meth|mod):(<code>)~?")
"""A reference in a docstring, such as :meth:`normalize`, as Markdown makes HTML of it."""


def linked_files(page: Path) -> list[Path]:
    """Return the files that a page links, in its order."""
    targets = [(page.parent / target).resolve() for target in LINK.findall(page.read_text("utf-8"))]
    return [target for target in targets if target.is_file()]


def tab(folder: str) -> list[str]:
    """Return the pages in a folder: its README, the pages that this links, and the others."""
    first = ROOT / folder / "README.md"
    pages = sorted((ROOT / folder).rglob("*.md"))
    linked = [page for page in linked_files(first) if page in pages]
    return [page.relative_to(ROOT).as_posix() for page in dict.fromkeys((first, *linked, *pages))]


def on_config(config: MkDocsConfig) -> None:
    """Set the navigation."""
    lists = (ROOT / "README.md").read_text("utf-8").partition("\n## Documentation\n")[2]
    use, _, contribute = lists.partition("\n- [Contribute]")
    config.nav = [
        {"Use": ["README.md", *docs_of(use)]},
        {"Studies": [{study_or_page(path): path} for path in tab("studies")]},
        {"Papers": tab("papers")},
        {"Contribute": ["CONTRIBUTING.md", *docs_of(contribute), "CHANGELOG.md"]},
    ]


def study_or_page(path: str) -> str:
    """Return what the list of studies calls a page: the name of its study, as commands take it."""
    folder = Path(path).parent.name
    return "All studies" if folder == "studies" else folder


def docs_of(text: str) -> list[str]:
    """Return the pages of docs/ that a text links."""
    return [target for target in LINK.findall(text) if target.startswith("docs/")]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the pages and the files that they link, instead of ``docs_dir``, and the theme's."""
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    paths = {STYLE, *pages, *(target for page in pages for target in linked_files(page))}
    own = [
        File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, use_directory_urls=True)
        for path in sorted(paths)
    ]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *own])


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the HTML of a page, with the references of docstrings as code."""
    return ROLE.sub(r"\1", html)
