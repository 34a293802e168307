"""The pages: generated blocks are fresh, commands and links exist, examples work."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

from docs import fill_docs
from norm_lab.config.studies import study_names
from norm_plugin.cli import all_verbs
from norm_plugin.norms.base import registry as registry
from papers.__main__ import fill_papers

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("norm_plugin", "norm_lab")
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PAPERS = [ROOT / "studies/README.md", *sorted(ROOT.glob("papers/*.md"))]
REPORTS = sorted(ROOT.glob("studies/*/README.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in (*PAGES, *PAPERS))


def test_generated_blocks_are_fresh():
    assert not fill_docs(ROOT, check=True), "run python tools/docs.py"
    assert not fill_papers(ROOT, check=True), "run python -m papers"


@pytest.mark.filterwarnings("ignore")  # those of mkdocs are counted by it
def test_the_site_is_built_without_a_warning(tmp_path):
    """The build warns of each link and each #anchor without a target."""
    build(load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))
    pages = [page.relative_to(ROOT) for page in (*PAGES, *PAPERS, *REPORTS)]
    addresses = [
        f"{page.parent if page.stem == 'README' else page.with_suffix('')}/index.html"
        for page in pages
    ]
    assert [name for name in addresses if not (tmp_path / name).is_file()] == []
    assert (tmp_path / "studies/characters/differences.svg").is_file()
    api = (tmp_path / "docs/api/index.html").read_text(encoding="utf-8")
    for name in ("norms.build_norm", "kernels.set_kernels", "placements.register_placement"):
        assert f'id="norm_plugin.{name}"' in api
    assert 'id="norm_plugin.norms.base' not in api and ":meth:" not in api


def test_a_study_with_runs_has_its_file_and_its_report():
    folders = [path.parent for path in ROOT.glob("studies/*/runs.jsonl")]
    names = ("study.yaml", "outputs.jsonl.gz", "README.md", "scores.svg")
    missing = [f / name for f in folders for name in names if not (f / name).is_file()]
    assert len(folders) >= 40 and missing == []


def test_the_pages_of_how_to_use_it_link_no_report():
    report = re.compile(r"\]\(\.\./studies/\w+/")
    assert [page.name for page in PAGES[1:] if report.search(page.read_text("utf-8"))] == []


def test_the_readme_links_every_page():
    linked = set(re.findall(r"\]\((docs/[^/)#]+\.md)\)", PAGES[0].read_text(encoding="utf-8")))
    assert linked == {f"docs/{page.name}" for page in PAGES[1:]}


def test_every_file_it_names_exists():
    text = TEXT + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    # a name in capitals, such as CORPUS.py, or with my_ stands for the reader's own
    names = set(re.findall(r"(?:scripts|configs|data-prep)/[a-z][\w.]+\w", text))
    names |= set(re.findall(r"`((?!my_)[a-z][a-z\d_./-]*\.(?:inc|jinja|py|sh|yaml))`", text))
    assert names >= {"scripts/demo.sh", "norm_plugin/kernels/triton/rows.py", "placements/base.py"}
    folders = {name.partition("/")[0] for name in names if "/" in name} | set(PACKAGES)
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    known = [f"/{path.relative_to(ROOT).as_posix()}" for path in paths]
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in known)] == []


def test_every_room_is_in_the_table_of_rooms():
    rooms = {
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).glob("*/*.py")
    }
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert "norm_plugin/norms" in rooms
    assert [room for room in rooms if f"| `{room}/` |" not in text] == []


def test_every_python_command_it_names_exists():
    text = TEXT + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    # A "Measured on" line names the command of its own commit.
    lines = [line for line in text.splitlines() if not line.startswith("Measured on")]
    text = "\n".join(lines)
    modules = set(re.findall(r"python -m ((?:norm_plugin|papers)[\w.]*)", text))
    assert "norm_plugin" in modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []
    verbs = set(re.findall(r"^norm-plugin ([\w-]+)|`norm-plugin ([\w-]+)", text, re.MULTILINE))
    verbs = {first or second for first, second in verbs} - {"VERB"}
    assert {"run", "sweep", "average"} <= verbs <= set(all_verbs())
    files = set(re.findall(r"python ([a-z-]+/[a-z][\w/]*\.py)", text))
    assert "benchmarks/layers.py" in files
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_who_repeats_a_study_by_a_block_reports_runs_of_his_own():
    """A block that trains a study reports no published runs, unless it publishes its own first."""
    blocks = re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S)
    trains = re.compile(r"^norm-plugin (?:sweep|study) (\w+)", re.M)
    reports = re.compile(r"^norm-plugin report (\S+)", re.M)
    checked = []
    for block in blocks:
        repeated = set(trains.findall(block)) & set(study_names())
        if "norm-plugin publish" not in block:
            checked += sorted(repeated)
            folders = reports.findall(block) if repeated else []
            assert all(folder.startswith("work/") for folder in folders), block
    assert len(checked) >= 15
