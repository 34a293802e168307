"""tools/placement_picture.py: every norm that a placement declares is drawn once."""

from __future__ import annotations

import pytest

from declared_tables import each_layer
from norm_plugin.placements import IN_ATTENTION, PLACEMENTS
from placement_picture import BRANCH, NORM, X, main, picture


@pytest.mark.parametrize("name", PLACEMENTS)
def test_each_declared_norm_is_a_box(name):
    (axes,) = picture([name]).axes
    cls = PLACEMENTS[name]
    wanted = cls.final_norm + cls.embedding_norm + len(cls.final_norms)
    for kind in each_layer(cls):
        for branch in ("self", "ffn"):
            positions = kind.norms_of(branch)  # one box shows those of queries, keys and values
            wanted += len({"heads" if slot in IN_ATTENTION else slot for slot in positions})
    assert sum(text.get_gid() == NORM for text in axes.texts) == wanted


def test_a_placement_of_a_user_dir_is_drawn(tmp_path):
    source = """
from norm_plugin.placements import SUM, Placement, register_placement

@register_placement("own-drawn", equation="norm(2 x + f(x))", paper="none")
class Drawn(Placement):
    norms = (SUM,)

    def join(self, x, fx, branch):
        return 2 * x + fx
"""
    folder = tmp_path / "own_drawn"
    folder.mkdir()
    (folder / "__init__.py").write_text(source, encoding="utf-8")
    try:
        main(["own-drawn", "--user-dir", str(folder), "--output", str(tmp_path / "own.svg")])
        assert "\N{MULTIPLICATION SIGN}2" in (tmp_path / "own.svg").read_text("utf-8")
    finally:
        PLACEMENTS.pop("own-drawn", None)


class Parallel(PLACEMENTS["pre"]):
    """Both branches read the input of the layer."""

    def begin(self, x):
        return x, x

    def read(self, x, branch, norm):
        return x, x[1]


@pytest.mark.parametrize("cls", [PLACEMENTS["pre"], Parallel])
def test_a_branch_begins_where_it_reads(cls, monkeypatch):
    monkeypatch.setitem(PLACEMENTS, "drawn", cls)
    (axes,) = picture(["drawn"]).axes
    paths = [line.get_xydata() for line in axes.lines]
    attention, ffn = (path[0, 1] for path in paths if path[0, 0] == X and path[-2, 0] == BRANCH)
    sums = [path[0, 1] for path in paths if path[0, 0] == BRANCH and path[-1, 0] > X]
    assert (ffn < min(sums)) == (cls is Parallel), (attention, ffn, sums)


def test_a_choice_of_placements_does_not_replace_the_published_picture(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["post"])
    assert "--output is missing" in capsys.readouterr().err
