"""Archives of made-up raw files, the real ones, and the preparation of a corpus."""

from __future__ import annotations

import codecs
import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pack():
    """Writes a .zip or .tgz of files, by name; `header` sets fields of the headers of a .tgz."""

    def run(path, files, **header):
        path.parent.mkdir(exist_ok=True)
        contents = {
            name: content.encode() if isinstance(content, str) else content
            for name, content in files.items()
        }
        if path.suffix == ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in contents.items():
                    archive.writestr(name, content)
            return path
        with tarfile.open(path, "w:gz") as archive:
            for name, content in contents.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                for key, value in header.items():
                    setattr(member, key, value)
                archive.addfile(member, io.BytesIO(content))
        return path

    return run


@pytest.fixture(scope="session")
def real():
    """The folder of a real corpus; skips the test if it is missing."""

    def run(name):
        folder = Path(os.environ.get("NORM_DATA_DIR", ""), name)
        if "NORM_DATA_DIR" not in os.environ or not folder.is_dir():
            pytest.skip(f"NORM_DATA_DIR names no folder with {name}/ in it")
        return folder

    return run


@pytest.fixture(scope="session")
def prepare():
    """Prepares a corpus with further flags; returns the manifest."""

    def run(corpus, raw, out, *flags):
        argv = ["--raw", raw, "--out", out, "--workers", "1", *flags]
        corpus.run(list(map(str, argv)))
        return json.loads((out / "manifest.json").read_text())

    return run


@pytest.fixture
def marked(tmp_path):
    """A copy of a folder of raw files, each with a byte order mark at its start."""

    def run(raw):
        copy = tmp_path / "marked"
        copy.mkdir()
        for path in raw.iterdir():
            (copy / path.name).write_bytes(codecs.BOM_UTF8 + path.read_bytes())
        return copy

    return run


@pytest.fixture(scope="session")
def lines():
    """The lines of a file of a prepared corpus: `tok/train.en`."""
    return lambda out, name: (out / name).read_text(encoding="utf-8").split("\n")[:-1]
