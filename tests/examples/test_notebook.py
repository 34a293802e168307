"""examples/notebook.ipynb runs, and prints what is stored in it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


def printed(notebook):
    """The texts of all outputs, with a line for each figure."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [
        output.data["text/plain"] if "data" in output else output.text
        for output in outputs
        if output.get("name") != "stderr"  # where a warning depends on the machine
    ]


def test_it_prints_what_is_stored_in_it():
    stored = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    fresh = NotebookClient(deepcopy(stored), timeout=300, resources=folder).execute()
    assert printed(fresh) == printed(stored)
    figures = [text for text in printed(stored) if "SVG object" in text or "<Figure" in text]
    assert len(figures) == 2
