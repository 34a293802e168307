"""All corpora that have a file in data-prep/, for tests and for what iterates over them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from prep.corpus import Corpus

FOLDER = Path(__file__).resolve().parents[1]


def load_corpora(folder: Path = FOLDER) -> dict[str, Corpus]:
    """Name to declaration of every corpus in `folder`, in the order of the names.

    A corpus is a file NAME.py that defines CORPUS.
    """
    found = ((path.stem, _load(path)) for path in sorted(folder.glob("*.py")))
    return {name: corpus for name, corpus in found if corpus is not None}


def _load(path: Path) -> Corpus | None:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # it is a .py file
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    corpus = getattr(module, "CORPUS", None)
    return corpus if isinstance(corpus, Corpus) else None
