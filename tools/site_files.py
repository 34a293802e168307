"""The parts of the site that mkdocs.yml leaves to a program: its files, and the order of its pages.

A page keeps its path in the repository, so that its links also work on the site. The README is the
first page, and its table of pages is the navigation.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
STYLE = ROOT / "docs/site.css"  # mkdocs.yml names it in extra_css
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def linked_files(page: Path) -> list[Path]:
    """Return the files that a page links, in its order."""
    targets = [(page.parent / target).resolve() for target in LINK.findall(page.read_text("utf-8"))]
    return [target for target in targets if target.is_file()]


def on_config(config: MkDocsConfig) -> None:
    """Set the navigation: the README, and the pages in the order of its table."""
    table = (ROOT / "README.md").read_text("utf-8").partition("\n## Documentation\n")[2]
    config.nav = ["README.md", *LINK.findall(table)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the pages and the files that they link, instead of ``docs_dir``, and the theme's."""
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    paths = {STYLE, *pages, *(target for page in pages for target in linked_files(page))}
    own = [
        File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, use_directory_urls=True)
        for path in sorted(paths)
    ]
    return Files([*(file for file in files if file.src_dir != config.docs_dir), *own])
