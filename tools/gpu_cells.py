"""The columns of a table of layers that come from the rows of ``benchmarks/gpu.py``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from measuring.records import Key, Row, newest, read_rows

SAME = ("norm", "rows", "channels", "dtype", "provider")
"""The columns in which two rows of gpu.csv agree where they measure the same thing."""
NUMBERS = ("p50_us", "floor_us")
ORIGIN = ("device", "cuda", "torch", "python", "commit", "date")
UNIT, FUSED = "torch.nn.LayerNorm", "fused"
RATIOS = {"fused": "GPU fused", "compile": "GPU `torch.compile`", "plain": "GPU plain"}
BYTES = "GPU fused, of copy speed"
DTYPE = "float32"


class GpuLayers:
    """What gpu.csv says of each norm, in float32; without a row it adds no column.

    Attributes:
        norms: those with rows.
        heads: of the columns.
        caption: what the columns are; none without rows.
        origins: a line for each row, with machine, versions and day.
    """

    def __init__(self, path: Path) -> None:
        found = newest(read_rows(path, (*SAME, *NUMBERS, *ORIGIN)), SAME)
        self.rows: dict[Key, Row] = {k: row for k, row in found.items() if row["dtype"] == DTYPE}
        self.norms = list(dict.fromkeys(row["norm"] for row in self.rows.values()))
        sizes = {(int(row["rows"]), int(row["channels"])) for row in self.rows.values()}
        self.sizes = sorted(sizes)
        self.heads = [*RATIOS.values(), BYTES] if self.rows else []
        self.caption: list[str] = []
        if self.rows:
            shown = " / ".join(f"{rows:,} x {channels:,}" for rows, channels in self.sizes)
            self.caption = [
                f"GPU: the same at {shown}, with each norm's default options. The last column is "
                "the share of the speed at which the device copies memory."
            ]
        self.origins = [self._origin(row) for row in self.rows.values()]

    def cells(self, norm: str, options: str) -> list[str]:
        """The cells of a norm; nothing without rows, — for options, which gpu.py does not vary."""
        if not self.rows:
            return []
        if options or norm not in self.norms:
            return ["—"] * len(self.heads)
        ratios = [self._joined(self._ratio(norm, provider)) for provider in RATIOS]
        return [*ratios, self._joined(self._share(norm))]

    def _ratio(self, norm: str, provider: str) -> Iterable[str]:
        for size in self.sizes:
            row, unit = self._row(norm, size, provider), self._row(norm, size, UNIT)
            yield f"{float(row['p50_us']) / float(unit['p50_us']):.2f}" if row and unit else ""

    def _share(self, norm: str) -> Iterable[str]:
        for size in self.sizes:
            row = self._row(norm, size, FUSED)
            yield f"{float(row['floor_us']) / float(row['p50_us']):.0%}" if row else ""

    def _row(self, norm: str, size: tuple[int, int], provider: str) -> Row | None:
        return self.rows.get((norm, str(size[0]), str(size[1]), DTYPE, provider))

    def _joined(self, values: Iterable[str]) -> str:
        found = list(values)
        return " / ".join(value or "—" for value in found) if any(found) else "—"

    def _origin(self, row: Row) -> str:
        device, cuda, torch, python, commit, date = (row[name] for name in ORIGIN)
        return (
            f"GPU: {device} (CUDA {cuda}), torch {torch}, Python {python}, commit {commit}, {date}."
        )
