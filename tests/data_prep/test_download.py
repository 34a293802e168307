"""Downloading against a server on this machine: whole, resumed, wrong, not there."""

from __future__ import annotations

import hashlib
import io
import tarfile
import urllib.request

import pytest

from norm_plugin.commands.command_line import CommandError
from prep import download

NAME = "train.en.gz"
CONTENT = bytes(range(256)) * 1000  # what the server has
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def source(*urls, name=NAME, digest=DIGEST):
    return download.Source(name, tuple(f"{url}/{name}" for url in urls), digest)


def test_download_once(server, tmp_path):
    folder = tmp_path / "raw"
    download.download_all([source(server.url)], folder)
    assert (folder / "train.en.gz").read_bytes() == CONTENT
    download.download_all([source(server.url)], folder)
    assert server.ranges == [None]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "train.en.gz"]


def test_a_part_of_which_nothing_is_known_starts_over(server, tmp_path):
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT[:1000])
    download.download_all([source(server.url)], tmp_path)
    assert server.ranges == [None]
    assert (tmp_path / NAME).read_bytes() == CONTENT


def begin(server, folder, digest=DIGEST, size=100_000):
    """Download the first `size` bytes, and no more."""
    server.cut = size
    message = rf"ended after {size:,} of 256,000 bytes.*same command"
    with pytest.raises(CommandError, match=message):
        download.download_all([source(server.url, digest=digest)], folder)
    assert not (folder / NAME).exists()
    server.cut = None


@pytest.mark.parametrize("digest", [DIGEST, None])
@pytest.mark.parametrize("headers", [{"ETag": '"one"'}, {"Last-Modified": "Sat, 1 Jan 2022"}])
@pytest.mark.parametrize("size", [2, 100_000, 255_999])
def test_a_broken_connection_is_resumed(server, tmp_path, digest, headers, size):
    server.headers = headers
    begin(server, tmp_path, digest, size)
    download.download_all([source(server.url, digest=digest)], tmp_path)
    assert server.ranges == [None, f"bytes={size - 1}-"]
    assert server.conditions == [None, *headers.values()]
    assert (tmp_path / NAME).read_bytes() == CONTENT
    recorded = [] if digest else [f"{NAME}.sha256"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", NAME, *recorded]


def test_a_part_that_is_whole_needs_one_byte(server, tmp_path):
    begin(server, tmp_path)
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)  # killed before it got its name
    download.download_all([source(server.url)], tmp_path)
    assert server.ranges == [None, "bytes=255999-"]


@pytest.mark.parametrize("change", ["changed", "plain", "range", "shorter", "unknown", "elsewhere"])
def test_what_cannot_be_continued_starts_over(server, tmp_path, change):
    begin(server, tmp_path, digest=None)
    server.ranges.clear()
    name = NAME
    if change == "changed":
        server.content, server.headers = server.content[::-1], {"ETag": '"two"'}
    elif change == "plain":
        server.plain = True
    elif change == "range":
        server.range_of = lambda start, size: f"bytes 0-{size - 1}/{size}"
    elif change == "shorter":
        server.content, server.lies = server.content[:50_000], True
    elif change == "unknown":
        (tmp_path / f"{NAME}.part.version").unlink()
    else:
        name = "train.de.gz"
        (tmp_path / f"{NAME}.part").rename(tmp_path / f"{name}.part")
        (tmp_path / f"{NAME}.part.version").rename(tmp_path / f"{name}.part.version")
    download.download_all([source(server.url, name=name, digest=None)], tmp_path)
    assert (tmp_path / name).read_bytes() == server.content
    assert server.ranges[-1] is None or change in ("changed", "plain")


def test_the_version_of_an_older_part_is_forgotten(server, tmp_path):
    begin(server, tmp_path)
    server.content, server.headers = server.content[::-1], {}
    begin(server, tmp_path)  # from the start, of a file whose version the server does not say
    server.ranges.clear()
    server.lies, server.headers = True, {"ETag": '"one"'}
    download.download_all([source(server.url, digest=None)], tmp_path)
    assert server.ranges == [None]
    assert (tmp_path / NAME).read_bytes() == server.content


def test_a_file_of_unknown_length_is_not_taken(server, tmp_path):
    server.says_length = {206}
    with pytest.raises(CommandError, match="the server does not say how long the file is"):
        download.download_all([source(server.url)], tmp_path)


def test_a_wrong_checksum_is_not_kept(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(
        CommandError, match=rf"train\.en\.gz: it has SHA-256 \w{{64}}, expected {DIGEST}"
    ):
        download.download_all([source(server.url)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("digest", [DIGEST, None])
def test_the_next_address_is_tried_after_a_wrong_file(tmp_path, monkeypatch, digest):
    archive = io.BytesIO()
    tarfile.open(fileobj=archive, mode="w:gz").close()
    content = CONTENT if digest else archive.getvalue()

    def fetch_rest(url, part):
        part.write_bytes(content if url.startswith("right") else b"<html>This domain is for sale.")

    monkeypatch.setattr(download, "fetch_rest", fetch_rest)
    download.download_all([source("sold", "right", name="train.tgz", digest=digest)], tmp_path)
    assert (tmp_path / "train.tgz").read_bytes() == content


def test_a_wrong_file_in_the_folder_is_named_and_left(server, tmp_path):
    (tmp_path / "train.en.gz").write_bytes(b"mine")
    with pytest.raises(CommandError, match=r"train\.en\.gz is not the published file"):
        download.download_all([source(server.url)], tmp_path)
    assert (tmp_path / "train.en.gz").read_bytes() == b"mine"


def test_no_such_file_and_no_server_say_what_to_do(server, tmp_path):
    with pytest.raises(CommandError, match=r"other\.gz: HTTP Error 404.*--raw"):
        download.download_all([source(server.url, name="other.gz")], tmp_path)
    both = [source(server.url), source(server.url, name="train.de.gz")]
    server.server_close()  # from here on a connection is refused
    with pytest.raises(CommandError, match=r"put train\.en\.gz, train\.de\.gz into .*--raw"):
        download.download_all(both, tmp_path)


def test_mirrors_are_tried_in_order(server, tmp_path):
    nowhere = server.url.replace("/files", "/moved")
    download.download_all([source(nowhere, server.url)], tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    download.download_all([source(server.url, nowhere)], tmp_path / "again")
    assert server.ranges == [None, None, None]
    with pytest.raises(
        CommandError, match=r"moved/\S+: HTTP Error 404.*; nor .*gone/\S+: HTTP Error"
    ):
        gone = server.url.replace("/files", "/gone")
        download.download_all([source(nowhere, gone)], tmp_path / "more")


def test_a_proxy_of_the_environment_is_asked(server, tmp_path, monkeypatch):
    # As a proxy, the server is asked for a whole address, which is none of its files.
    monkeypatch.setattr(urllib.request, "_opener", None)  # made once, of the environment then
    monkeypatch.setenv("http_proxy", server.url.rpartition("/")[0])
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(CommandError, match=r"http://elsewhere\.invalid/\S+: HTTP Error 404"):
        download.download_all([source("http://elsewhere.invalid")], tmp_path)
    assert server.ranges == [None]


def test_the_first_download_is_remembered_by_its_checksum(server, tmp_path):
    unpublished = [source(server.url, digest=None)]
    assert download.known_digests(unpublished, tmp_path) is None
    download.download_all(unpublished, tmp_path)
    assert (tmp_path / f"{NAME}.sha256").read_text() == f"{DIGEST}  {NAME}\n"
    assert download.known_digests(unpublished, tmp_path) == {NAME: DIGEST}
    (tmp_path / NAME).write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(CommandError, match=r"is not the first downloaded file .*remove it"):
        download.download_all(unpublished, tmp_path)
    # Removed, as told: what is downloaded now must be what was downloaded then.
    (tmp_path / NAME).unlink()
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(CommandError, match=rf"expected {DIGEST}; it was not kept"):
        download.download_all(unpublished, tmp_path)


def test_a_file_put_there_by_hand_gets_its_checksum(tmp_path):
    (tmp_path / NAME).write_bytes(CONTENT)
    download.download_all([source("http://127.0.0.1:9", digest=None)], tmp_path)
    assert (tmp_path / f"{NAME}.sha256").read_text().startswith(DIGEST)


def test_half_an_archive_is_never_remembered(server, tmp_path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("a")
        member.size = len(CONTENT)
        archive.addfile(member, io.BytesIO(CONTENT))
    server.content = stream.getvalue()[:600]
    half = [source(server.url, name="train.tgz", digest=None)]
    with pytest.raises(CommandError, match=r"train\.tgz\.part is truncated or damaged"):
        download.download_all(half, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    (tmp_path / "train.tgz").write_bytes(server.content)  # put there by hand
    with pytest.raises(CommandError, match=r"train\.tgz is truncated or damaged: .*; remove it"):
        download.download_all(half, tmp_path)
    assert not (tmp_path / "train.tgz.sha256").exists()
