"""Archives are read as a stream; a damaged or manipulated one is refused as a whole."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from prep import archives
from prep.messages import PrepError

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


def test_lines_of_a_member(tmp_path):
    path = pack(tmp_path / "a.tgz")
    archives.check_archive(path, ["folder/a.de", "folder/b.de"])
    for name in ("folder/a.de", "folder/b.de"):
        assert list(archives.member_lines(path, name)) == TEXT.decode().split("\n")[:-1]
    with pytest.raises(PrepError, match=r"a\.tgz lacks folder/c\.de; it is not the archive"):
        archives.check_archive(path, ["folder/c.de"])
    with pytest.raises(PrepError, match=r"a\.tgz lacks folder/c\.de"):
        list(archives.member_lines(path, "folder/c.de"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../b.de"}, r"'\.\./b\.de' leads out of its folder"),
        ({"name": "folder/../../b.de"}, r"leads out of its folder"),
        ({"name": "/etc/passwd"}, r"'/etc/passwd' leads out of its folder"),
        ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, r"is a link or a device"),
        ({"type": tarfile.LNKTYPE, "linkname": "folder/a.de"}, r"is a link or a device"),
        ({"type": tarfile.CHRTYPE}, r"is a link or a device"),
        ({"type": tarfile.FIFOTYPE}, r"is a link or a device"),
    ],
)
def test_a_member_that_is_not_to_be_trusted(tmp_path, changes, message):
    path = pack(tmp_path / "a.tgz", **changes)
    with pytest.raises(PrepError, match=rf"a\.tgz is not to be trusted: .*{message}"):
        archives.check_archive(path, ["folder/a.de"])


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.99])
def test_a_cut_archive(tmp_path, keep):
    path = pack(tmp_path / "a.tgz")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(PrepError, match=r"a\.tgz is truncated or damaged: .*download it again"):
        archives.check_archive(path)


def test_a_changed_byte_and_no_archive_at_all(tmp_path):
    path = pack(tmp_path / "a.tgz")
    whole = bytearray(path.read_bytes())
    whole[-6] ^= 1  # in the checksum at the end
    path.write_bytes(whole)
    with pytest.raises(PrepError, match=r"a\.tgz is truncated or damaged"):
        archives.check_archive(path)
    path.write_bytes(b"<html>Not found</html>")
    with pytest.raises(PrepError, match=r"a\.tgz is truncated or damaged"):
        archives.check_archive(path)
    with pytest.raises(PrepError, match=r"b\.tgz is missing"):
        archives.check_archive(tmp_path / "b.tgz")


def test_an_archive_that_unpacks_to_far_too_much(tmp_path, monkeypatch):
    path = pack(tmp_path / "a.tgz")
    monkeypatch.setattr(archives, "SMALL_BYTES", 3 * len(TEXT))
    archives.check_archive(path)
    monkeypatch.setattr(archives, "MOST_RATIO", 2)
    monkeypatch.setattr(archives, "SMALL_BYTES", 0)
    with pytest.raises(PrepError, match=r"a\.tgz is not to be trusted: it unpacks to more than"):
        archives.check_archive(path)
    # The rest after the end of the archive counts too.
    monkeypatch.setattr(archives, "SMALL_BYTES", 3 * len(TEXT))
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(4 * len(TEXT))))
    with pytest.raises(PrepError, match=r"it unpacks to more than"):
        archives.check_archive(path)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 2)
    with pytest.raises(PrepError, match=r"a\.tgz is not to be trusted: too many files"):
        archives.check_archive(pack(tmp_path / "a.tgz"))


@pytest.mark.parametrize("kind", archives.HEADERS)
def test_a_header_that_would_fill_the_memory(tmp_path, kind):
    path = tmp_path / "a.tgz"
    header = tarfile.TarInfo("long")
    header.type, header.size = kind, 1 << 40
    path.write_bytes(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    with pytest.raises(PrepError, match=r"a\.tgz is truncated or damaged: a header of 1,099,511,6"):
        archives.check_archive(path)
