"""The files of a user dir that a run depends on."""

from __future__ import annotations

import sys

import pytest

from norm_lab.config.user_dir import sources_in_use
from norm_plugin.io.user_dirs import import_folder

FILES = {
    "__init__.py": "from my_sources import mine, other\n",
    "mine.py": """
from my_sources.near import NAME
from norm_plugin.norms import Norm, register_norm

@register_norm(NAME, formula="x", paper="none")
class Mine(Norm):
    \"\"\"A norm of its own.\"\"\"

    def __init__(self, dim):
        super().__init__(dim)

    def normalize(self, x, valid=None):
        return x
""",
    "near.py": "from my_sources.far import NAME\n",
    "far.py": "NAME = 'mine-of-sources'\n",
    "other.py": "UNUSED = 1\n",
}


@pytest.mark.usefixtures("own_registry")
def test_a_norm_depends_on_what_its_file_imports_and_on_what_that_imports(tmp_path, monkeypatch):
    folder = tmp_path / "my_sources"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    import_folder(folder)
    monkeypatch.syspath_prepend(str(tmp_path))
    used = sources_in_use(folder, ["--norm-type", "mine-of-sources"])
    assert set(used) == {f"my_sources/{name}.py" for name in ("mine", "near", "far")}
    assert sources_in_use(folder, ["--norm-type", "layernorm"]) == {}
