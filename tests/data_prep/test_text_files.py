"""Reading text, and archives: a damaged or manipulated one is refused as a whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile

import pytest

from norm_plugin.commands.command_line import CommandError
from prep import files
from prep.files import lines_of


def read(path):
    return list(lines_of(path))


def write(path, text):
    path.write_bytes(text.encode("utf-8"))
    return path


def test_a_line_ends_at_newline_and_nowhere_else(tmp_path):
    lines = ["a\u2028b", "c\x0bd\x0c", "e\r", "", "f\x85\u00a0g"]
    path = write(tmp_path / "text", "\n".join(lines))
    assert list(lines_of(path)) == lines
    zipped = tmp_path / "text.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert list(lines_of(zipped)) == lines


@pytest.mark.parametrize("keep", [0.5, 0.02])
def test_gzip_cut_in_half_is_named_with_its_lines(tmp_path, keep):
    # Text that does not compress well, so that whole lines come out before the cut.
    lines = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(3000)]
    whole = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "train.en.gz"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(
        CommandError, match=r"train\.en\.gz is truncated or damaged after [\d,]+ line"
    ):
        read(path)


def test_what_is_no_gzip_is_an_error(tmp_path):
    with pytest.raises(CommandError, match=r"train\.en\.gz is truncated or damaged after 0 lines"):
        read(write(tmp_path / "train.en.gz", "a plain text\n"))


def test_other_encoding_is_named_with_its_line(tmp_path):
    path = tmp_path / "text.de"
    path.write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(CommandError, match=r"text\.de, line 2, is not UTF-8"):
        read(path)


# ---- archives --------------------------------------------------------------------------------

TEXT = "".join(f"{number} eins\u2028zwei\n" for number in range(2000)).encode()


def pack(path, **changes):
    """An archive of folder/, folder/a.de, and a third member with `changes` made to it."""
    with tarfile.open(path, "w:gz") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in ("folder/a.de", "./folder/b.de"):
            member = tarfile.TarInfo(name)
            member.size = len(TEXT)
            if name.endswith("b.de"):
                for key, value in changes.items():
                    setattr(member, key, value)
            archive.addfile(member, io.BytesIO(TEXT))
    return path


def test_files_of_an_archive_are_unpacked(tmp_path):
    path, wanted = pack(tmp_path / "a.tgz"), ["folder/a.de", "folder/b.de"]
    files.read_archive(path, wanted)
    files.read_archive(path, wanted, tmp_path / "out")
    for name in wanted:
        assert read(tmp_path / "out" / name) == TEXT.decode().split("\n")[:-1]
    with pytest.raises(CommandError, match=r"a\.tgz lacks folder/c\.de; it is not the archive"):
        files.read_archive(path, ["folder/c.de"])


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../b.de"},
        {"name": "folder/b.de", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"name": "folder/b.de", "type": tarfile.CHRTYPE},
    ],
)
def test_a_file_that_leads_elsewhere_is_not_unpacked(tmp_path, changes):
    path, out = pack(tmp_path / "a.tgz", **changes), tmp_path / "out"
    with pytest.raises(CommandError, match=r"a\.tgz is truncated or damaged: "):
        files.read_archive(path, [changes["name"]], out)
    assert not (tmp_path / "b.de").exists() and not (out / "folder/b.de").exists()


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.99])
def test_a_cut_archive(tmp_path, keep):
    path = pack(tmp_path / "a.tgz")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(CommandError, match=r"a\.tgz is truncated or damaged: .*download it again"):
        files.read_archive(path)


def test_a_changed_byte_and_no_archive_at_all(tmp_path):
    path = pack(tmp_path / "a.tgz")
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 1  # in the checksum at the end
    path.write_bytes(whole)
    with pytest.raises(CommandError, match=r"a\.tgz is truncated or damaged"):
        files.read_archive(path)
    path.write_bytes(b"<html>Not found</html>")
    with pytest.raises(CommandError, match=r"a\.tgz is truncated or damaged"):
        files.read_archive(path)
