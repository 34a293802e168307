"""The files of a user dir that a run depends on."""

from __future__ import annotations

import sys

import pytest

from norm_lab.config.user_dir import sources_in_use
from norm_plugin.io.user_dirs import import_folder

NORM = """
from my_sources.near import NAME
from norm_plugin.norms import Norm, register_norm

@register_norm(NAME, formula="x", paper="none")
class Mine(Norm):
    \"\"\"A norm of its own.\"\"\"

    def __init__(self, dim):
        super().__init__(dim)

    def normalize(self, x, valid=None):
        return x
"""
FILES = {
    "__init__.py": "from my_sources import mine, other, place\n",
    "mine.py": NORM,
    "near.py": "from my_sources.far import NAME\n",
    "far.py": "NAME = 'mine-of-sources'\n",
    "other.py": "UNUSED = 1\n",
    "place.py": "from norm_plugin.placements import Placement, register_placement\n"
    "@register_placement('place-of-sources', equation='x + f(norm(x))', paper='none')\n"
    "class Place(Placement):\n    norms = ('input',)\n",
}


@pytest.mark.usefixtures("own_registry")
def test_a_run_depends_on_the_files_of_its_norm_and_placement(tmp_path, monkeypatch):
    """And on what these import; files with side effects concern every run."""
    folder = tmp_path / "my_sources"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    import_folder(folder)
    monkeypatch.syspath_prepend(str(tmp_path))

    def used(*flags):
        return {name.partition("/")[2] for name in sources_in_use(folder, flags)}

    assert used("--norm-type", "mine-of-sources") == {"mine.py", "near.py", "far.py"}
    assert used("--norm-placement=place-of-sources") == {"place.py"}
    assert used("--norm-type", "layernorm") == set()
    before = sources_in_use(folder, ["--norm-type", "mine-of-sources"])
    (folder / "far.py").write_text(FILES["far.py"] + "# another version\n")
    after = sources_in_use(folder, ["--norm-type", "mine-of-sources"])
    assert {name for name in after if after[name] != before[name]} == {"my_sources/far.py"}
    (folder / "other.py").write_text("print('patches something')\n")
    assert used("--norm-type", "layernorm") == {"other.py"}
