"""Reading text, and archives: a damaged or manipulated one is refused as a whole."""

from __future__ import annotations

import gzip
import hashlib
import tarfile

import pytest

from norm_plugin.io.command_line import CommandError
from prep import files
from prep.files import lines_of


def test_a_line_ends_at_newline_and_nowhere_else(tmp_path):
    lines = ["a\u2028b", "c\x0bd\x0c", "e\r", "", "f\x85\u00a0g"]
    content = "\n".join(lines).encode()
    (tmp_path / "text").write_bytes(content)
    (tmp_path / "text.gz").write_bytes(gzip.compress(content))
    for name in ("text", "text.gz"):
        assert list(lines_of(tmp_path / name)) == lines


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    content = BOM + b"a b\n" + BOM + b"c\n"
    (tmp_path / "text").write_bytes(content)
    (tmp_path / "text.gz").write_bytes(gzip.compress(content))
    for name in ("text", "text.gz"):
        assert list(lines_of(tmp_path / name)) == [
            "a b",
            "\ufeffc",
        ]  # at the start of the file only
    (tmp_path / "text").write_bytes(BOM)
    assert list(lines_of(tmp_path / "text")) == []


# Text that does not compress well, so that whole lines come out before a cut.
ZIPPED = gzip.compress(
    "\n".join(hashlib.sha256(b"%d" % n).hexdigest() for n in range(999)).encode()
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.gz", ZIPPED[: len(ZIPPED) // 2], r"a\.gz is truncated or damaged after [\d,]+ lines"),
        ("a.gz", b"a plain text\n", r"a\.gz is truncated or damaged after 0 lines"),
        ("a.de", "gut\nschön\n".encode("latin-1"), r"a\.de, line 2, is not UTF-8"),
    ],
    ids=["cut", "plain", "latin-1"],
)
def test_a_text_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CommandError, match=message):
        list(lines_of(tmp_path / name))


# ---- archives --------------------------------------------------------------------------------

TEXT = "".join(f"{number} eins\u2028zwei\n" for number in range(2000))


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
def test_files_of_an_archive_are_unpacked(tmp_path, pack, name):
    dot = "" if name == "a.zip" else "./"
    path = pack(tmp_path / name, {"folder/a.de": TEXT, f"{dot}folder/b.de": TEXT})
    wanted = ["folder/a.de", "folder/b.de"]
    files.read_archive(path, wanted)
    files.read_archive(path, wanted, tmp_path / "out")
    for name in wanted:
        assert list(lines_of(tmp_path / "out" / name)) == TEXT.split("\n")[:-1]
    with pytest.raises(CommandError, match=r"lacks folder/c\.de; it is not the expected archive"):
        files.read_archive(path, ["folder/c.de"])


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("../b.de", {}),
        ("b.de", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("b.de", {"type": tarfile.CHRTYPE}),
        ("b.de", {"type": tarfile.LNKTYPE, "linkname": "nothing"}),
    ],
)
def test_a_file_that_leads_elsewhere_is_not_unpacked(tmp_path, pack, name, header):
    path, out = pack(tmp_path / "a.tgz", {name: TEXT}, **header), tmp_path / "out"
    with pytest.raises(CommandError, match=r"a\.tgz is truncated or damaged: "):
        files.read_archive(path, [name], out)
    assert not (tmp_path / "b.de").exists() and not (out / "b.de").exists()


@pytest.mark.parametrize("time", ["1e30", "nan"])
def test_a_member_with_a_time_that_is_none_is_refused_in_one_line(tmp_path, pack, time):
    path = pack(tmp_path / "a.tgz", {"b.de": TEXT}, pax_headers={"mtime": time})
    with pytest.raises(CommandError, match=r"a\.tgz is truncated or damaged: "):
        files.read_archive(path, ["b.de"], tmp_path / "out")


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place:][1:]


@pytest.mark.parametrize("name", ["a.tgz", "a.zip"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[: len(whole) // 2],
        lambda whole: flipped(whole, 60),
        lambda whole: flipped(whole, -6),  # in a .tgz, of its checksum
        lambda whole: b"<html>Not found</html>",
    ],
)
def test_a_damaged_archive_is_refused(tmp_path, pack, name, damage):
    path = pack(tmp_path / name, {"folder/a.de": TEXT})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CommandError, match="is truncated or damaged: .*download it again"):
        files.read_archive(path)
