"""Records of a training, read as tables."""

from __future__ import annotations

import csv
import io

import pytest
import torch

from norm_lab.report.records import LAYERS, RECORDED, main, read_record, values_of
from norm_plugin.io.command_line import CommandError
from norm_plugin.models.recording import RecordFile, measures

HEADER = {"every": 10, "norms": "norms: placement pre", "sites": {"encoder.a": 4, "decoder.b": 4}}
SEVEN = [0.5] * len(measures.LEVELS)


@pytest.fixture
def record(tmp_path):
    """Two updates; ``decoder.b`` lacks running statistics, as LayerNorm does."""
    path = tmp_path / "record"
    file = RecordFile(path, HEADER)
    for update in (1, 11):
        a = {"g_mu": 0.1, "g_sigma2": 0.2, "distance_mean": 0.3, "gamma_over_psi": SEVEN}
        layers = {"encoder.layers.0": {"hidden_rms": 1.0 * update}}
        file.append(
            {
                "update": update,
                "sites": {"encoder.a": a, "decoder.b": {"g_mu": 4.0}},
                "layers": layers,
            }
        )
    return path


def values(record, figure):
    what = RECORDED[figure]
    return values_of(read_record(record), what.names, what.part)


def test_a_table_has_a_row_for_each_update_and_place(record):
    layers = values_of(read_record(record), ["hidden_rms"], LAYERS)
    rows = layers.itertuples(index=False, name=None)
    assert list(rows) == [(1, "encoder.layers.0", 1.0), (11, "encoder.layers.0", 11.0)]
    quantiles = values(record, "powernorm-7")
    assert list(quantiles)[2:] == [f"gamma_over_psi_{level:g}" for level in measures.LEVELS]
    assert list(quantiles.iloc[0])[1:] == ["encoder.a", *SEVEN]
    table = values(record, "powernorm-3").fillna(-1)
    assert list(table) == ["update", "place", "g_mu", "g_sigma2"]
    assert sorted(table.itertuples(index=False, name=None)) == [
        (1, "decoder.b", 4.0, -1),
        (1, "encoder.a", 0.1, 0.2),
        (11, "decoder.b", 4.0, -1),
        (11, "encoder.a", 0.1, 0.2),
    ]


def test_what_is_not_there_is_refused(record):
    with pytest.raises(CommandError, match=r"has no decoder\.c; it has encoder\.a, decoder\.b"):
        main([str(record), "--figure", "powernorm-3", "--sites", "encoder", "decoder.c"])
    with pytest.raises(CommandError, match="has no distance_variance, distance_square, .*: its no"):
        main([str(record), "--figure", "powernorm-4", "--sites", "decoder.b"])


@pytest.mark.parametrize("name", RECORDED)
def test_every_name_of_a_figure_is_recorded(name):
    """The functions that make the records give every name; layers are named by their weights."""
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    batch = measures.moments(x)
    known = {
        **measures.statistics_measures(batch, batch._asdict()),
        **measures.gradient_parts(x, x, batch, 1e-5),
        "gamma_over_psi": None,
    }
    assert RECORDED[name].part == LAYERS or set(RECORDED[name].names) <= set(known)


def test_the_command_prints_what_is_there_and_csv(record, capsys):
    assert main([str(record)]) == 0
    assert capsys.readouterr().out.startswith(
        "2 records of updates 1 to 11, every 10, at 2 norms\nnorms: placement pre\n"
    )
    assert main([str(record), "--figure", "powernorm-3", "--sites", "encoder"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0][:2] == ["update", "site"] and rows[1] == ["1", "encoder.a", "0.1", "0.2"]


def test_bad_files_are_one_line(tmp_path):
    (tmp_path / "text").write_text("text", encoding="utf-8")
    (tmp_path / "empty").write_bytes(b"")
    for name, message in [
        ("missing", "cannot read .*missing: No such file"),
        ("text", "is not a file of --norm-record"),
        ("empty", "has no record yet"),
    ]:
        with pytest.raises(CommandError, match=message):
            read_record(tmp_path / name)
