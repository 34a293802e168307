"""Files that commands write: whole or not at all, and only where they were told to."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from norm_plugin.io.command_line import CommandError
from norm_plugin.io.files import atomic_write, write_text


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_an_existing_file_keeps_its_permissions(mode, tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    path.chmod(mode)
    with atomic_write(path) as stream:
        stream.write(b"new")
        (new,) = set(tmp_path.iterdir()) - {path}
        assert stat.S_IMODE(new.stat().st_mode) == mode  # nor can others read it meanwhile
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    (tmp_path / "other").touch()
    write_text(tmp_path / "new", "")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_nobody_can_prepare_a_link_under_the_name_of_the_new_file(tmp_path, monkeypatch):
    names = []
    for text in ("one", "two"):
        with atomic_write(tmp_path / "a.json") as stream:
            names.append(Path(stream.name).name)
            stream.write(text.encode())
    assert names[0] != names[1] and not any(str(os.getpid()) in name for name in names)
    # nor is one followed that has the name by chance
    (tmp_path / "theirs").write_text("treasure")
    monkeypatch.setattr("norm_plugin.io.files.secrets.token_hex", lambda _: "guessed")
    (tmp_path / "a.json.guessed.tmp").symlink_to(tmp_path / "theirs")
    with pytest.raises(CommandError, match="cannot write .*a.json: File exists"):
        write_text(tmp_path / "a.json", "three")
    assert (tmp_path / "theirs").read_text() == "treasure"
    assert (tmp_path / "a.json").read_text() == "two"


def test_a_read_only_disk_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("norm_plugin.io.files.os.open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(CommandError, match="cannot write .*a.json: Read-only file system"):
        write_text(tmp_path / "a.json", "")
