"""Records of a training, read as tables."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from forked import run_forked

from norm_plugin.analysis.records import FIGURES, LAYERS, figure_table, main, read_record, table
from norm_plugin.commands.command_line import CommandError
from norm_plugin.models import measures
from norm_plugin.models.record_file import RecordFile

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
    return read_record(path)


def test_a_table_has_a_row_for_each_update_and_site(record):
    header, rows = figure_table(record, "powernorm-3")
    assert header == ("update", "site", "g_mu", "g_sigma2")
    assert rows == [
        (1, "encoder.a", 0.1, 0.2),
        (1, "decoder.b", 4.0, None),
        (11, "encoder.a", 0.1, 0.2),
        (11, "decoder.b", 4.0, None),
    ]
    assert record.every == 10 and record.channels == HEADER["sites"]


def test_a_site_without_any_of_the_values_has_no_row(record):
    assert [row[:3] for row in figure_table(record, "powernorm-2")[1]] == [
        (1, "encoder.a", 0.3),
        (11, "encoder.a", 0.3),
    ]


def test_values_over_channels_have_a_column_for_each_quantile(record):
    header, rows = figure_table(record, "powernorm-7")
    assert header[2:] == tuple(f"gamma_over_psi_{level:g}" for level in measures.LEVELS)
    assert rows[0] == (1, "encoder.a", *SEVEN)


def test_layers_are_a_part_of_their_own(record):
    header, rows = table(record, ["hidden_rms"], LAYERS)
    assert header == ("update", "layer", "hidden_rms")
    assert rows == [(1, "encoder.layers.0", 1.0), (11, "encoder.layers.0", 11.0)]


def test_only_some_sites(record):
    assert [row[1] for row in figure_table(record, "powernorm-3", ["dec"])[1]] == ["decoder.b"] * 2
    with pytest.raises(CommandError, match=r"has no decoder\.c; it has encoder\.a, decoder\.b"):
        figure_table(record, "powernorm-3", ["encoder", "decoder.c"])


def test_what_no_site_has_is_refused(record):
    with pytest.raises(CommandError, match="has no rms, largest, outlier_share: its norms"):
        figure_table(record, "outliers")


@pytest.mark.parametrize("name", FIGURES)
def test_every_name_of_a_figure_is_recorded(name):
    """By the functions that make the records; the layers' names are those of weights."""
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    batch = measures.moments(x)
    known = {
        **measures.of_input(x),
        **measures.of_statistics(batch, batch._asdict()),
        **measures.gradient_parts(x, x, batch, 1e-5),
        **measures.of_gradient("output", x),
        **measures.of_gradient("input", x),
        "gamma_over_psi": None,
    }
    assert FIGURES[name].part == LAYERS or set(FIGURES[name].names) <= set(known)


def test_the_command_prints_what_is_there_and_csv(record, capsys):
    assert main([str(record.path)]) == 0
    assert capsys.readouterr().out.startswith(
        "2 records of updates 1 to 11, every 10, at 2 norms\nnorms: placement pre\n"
    )
    assert main([str(record.path), "--figure", "powernorm-3", "--sites", "encoder"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert rows[0][0] == "update" and rows[1] == ["1", "encoder.a", "0.1", "0.2"]


def test_bad_files_are_one_line(tmp_path):
    (tmp_path / "text").write_text("text", encoding="utf-8")
    (tmp_path / "empty").write_bytes(b"")
    for name, message in [
        ("missing", "cannot read .*missing: No such file"),
        ("text", "is not a file of --norm-record"),
        ("empty", "holds no record yet"),
    ]:
        with pytest.raises(CommandError, match=message):
            read_record(tmp_path / name)


def test_it_is_a_command(tmp_path):
    done = run_forked("norm_plugin.analysis.records", tmp_path / "missing")
    assert done.returncode == 1 and done.stderr.startswith("error: cannot read")
