"""benchmarks/recording.py: its rows and its targets."""

from __future__ import annotations

import pandas as pd
import pytest

import recording


class OfOneSize(recording.RecordFile):
    """Writes a thousand bytes for each record."""

    def append(self, record):
        assert record["sites"] and record["layers"]
        with self.path.open("ab") as stream:
            stream.write(bytes(1000))


def test_a_row_has_the_cost_and_the_size(toy, tmp_path, capsys, monkeypatch, cpu_kernels):
    monkeypatch.setattr(recording, "RecordFile", OfOneSize)
    output = tmp_path / "recording.csv"
    argv = ["--data", str(toy), "--quick", "--updates", "2", "--threads", "1"]
    assert recording.main([*argv, "--norms", "batchnorm", "--output", str(output)]) == 0
    assert capsys.readouterr().out.startswith("norm batchnorm ")
    (row,) = pd.read_csv(output).to_dict("records")
    share = row["added_p50_ms"] / row["plain_p50_ms"]
    assert row["share_percent"] == pytest.approx(share, rel=0.05, abs=0.05)
    assert row["megabytes"] == 0.9  # 900 records in 90,000 updates
