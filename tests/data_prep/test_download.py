"""Downloading against a server on this machine: whole, resumed, wrong, not there."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from norm_plugin.io.command_line import CommandError
from prep import download

NAME = "train.en.gz"
CONTENT = bytes(range(256)) * 1000  # what the server has
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves the server's `content` with its `headers`; tests set what else it does."""

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers["Range"])
        server.conditions.append(self.headers["If-Range"])
        if not self.path.startswith("/files/train"):
            self.send_error(404)
            return
        body, start = server.content, 0
        same = self.headers["If-Range"] in (None, *server.headers.values())
        if self.headers["Range"] and same and not server.plain:
            start = int(self.headers["Range"][len("bytes=") : -1])
            self.send_response_only(206)
            shown = start + server.shift
            self.send_header("Content-Range", f"bytes {shown}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response_only(200)
        for name, value in server.headers.items():
            self.send_header(name, value)
        if server.says_length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : server.cut])

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def server(monkeypatch):
    """Understands Range unless `plain`; cuts after `cut` bytes."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.content, running.headers = CONTENT, {"ETag": '"one"'}
        running.cut, running.plain, running.shift, running.says_length = None, False, 0, True
        running.ranges, running.conditions = [], []
        running.url = f"http://127.0.0.1:{running.server_port}/files"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def source(*urls, name=NAME, digest=DIGEST):
    return download.Source(name, tuple(f"{url}/{name}" for url in urls), digest)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_download_once(server, tmp_path):
    download.download_all([source(server.url)], tmp_path / "raw")
    assert (tmp_path / "raw" / NAME).read_bytes() == CONTENT
    download.download_all([source(server.url)], tmp_path / "raw")
    assert server.ranges == [None]
    assert names(tmp_path / "raw") == [".lock", NAME]


def begin(server, folder, digest=DIGEST, size=100_000):
    """Download the first `size` bytes, and no more."""
    server.cut = size
    message = rf"ended after {size:,} of 256,000 bytes.*same command"
    with pytest.raises(CommandError, match=message):
        download.download_all([source(server.url, digest=digest)], folder)
    assert not (folder / NAME).exists()
    server.cut = None


@pytest.mark.parametrize(
    ("digest", "headers", "size"),
    [
        (DIGEST, {"ETag": '"one"'}, 100_000),
        (None, {"Last-Modified": "Sat, 1 Jan 2022"}, 255_999),
    ],
)
def test_a_broken_connection_is_resumed(server, tmp_path, digest, headers, size):
    server.headers = headers
    begin(server, tmp_path, digest, size)
    download.download_all([source(server.url, digest=digest)], tmp_path)
    assert server.ranges == [None, f"bytes={size - 1}-"]
    assert server.conditions == [None, *headers.values()]
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert names(tmp_path) == [".lock", NAME, *([] if digest else [f"{NAME}.sha256"])]


def test_a_part_that_is_whole_needs_one_byte(server, tmp_path):
    begin(server, tmp_path)
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)  # killed before it got its name
    download.download_all([source(server.url)], tmp_path)
    assert server.ranges == [None, "bytes=255999-"]


@pytest.mark.parametrize("change", ["changed", "plain", "unknown", "elsewhere"])
def test_what_cannot_be_continued_starts_over(server, tmp_path, change):
    begin(server, tmp_path, digest=None)
    server.ranges.clear()
    name = NAME
    if change == "changed":
        server.content, server.headers = server.content[::-1], {"ETag": '"two"'}
    elif change == "plain":
        server.plain = True
    elif change == "unknown":
        (tmp_path / f"{NAME}.part.version").unlink()
    else:
        name = "train.de.gz"
        (tmp_path / f"{NAME}.part").rename(tmp_path / f"{name}.part")
        (tmp_path / f"{NAME}.part.version").rename(tmp_path / f"{name}.part.version")
    download.download_all([source(server.url, name=name, digest=None)], tmp_path)
    assert (tmp_path / name).read_bytes() == server.content
    assert server.ranges[-1] is None or change in ("changed", "plain")


def test_another_part_than_the_one_asked_for_is_not_taken(server, tmp_path):
    begin(server, tmp_path, digest=None)
    server.shift = 1
    with pytest.raises(CommandError, match="sent another part"):
        download.download_all([source(server.url, digest=None)], tmp_path)
    download.download_all([source(server.url, digest=None)], tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_file_of_unknown_length_is_not_taken(server, tmp_path):
    server.says_length = False
    with pytest.raises(CommandError, match="the server does not say how long the file is"):
        download.download_all([source(server.url)], tmp_path)


def test_a_wrong_file_is_not_kept_and_the_next_address_is_tried(
    server, tmp_path, pack, monkeypatch
):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(
        CommandError, match=rf"is not the published file: .* \w{{64}}, not {DIGEST}"
    ):
        download.download_all([source(server.url)], tmp_path)
    with pytest.raises(CommandError, match=r"train\.tgz\.part is truncated or damaged"):
        download.download_all([source(server.url, name="train.tgz", digest=None)], tmp_path)
    assert names(tmp_path) == [".lock"]
    archive = pack(tmp_path / "train.tgz", {"a": CONTENT}).read_bytes()
    (tmp_path / "train.tgz").unlink()
    fetch = download.fetch_rest

    def fetch_rest(url, part):
        server.content = archive if "?" in url else b"<html>This domain is for sale."
        fetch(url, part)

    monkeypatch.setattr(download, "fetch_rest", fetch_rest)
    urls = (f"{server.url}/train.tgz", f"{server.url}/train.tgz?")
    download.download_all([download.Source("train.tgz", urls)], tmp_path)
    assert (tmp_path / "train.tgz").read_bytes() == archive


def test_a_page_of_the_server_is_no_text_of_the_published_length(server, tmp_path):
    text = download.Source("train.en", (f"{server.url}/train.en",), lines=2)
    server.content = b"<html>Log in to go on.</html>\n"
    with pytest.raises(CommandError, match=r"has 1 lines, but the published one has 2"):
        download.download_all([text], tmp_path)
    assert names(tmp_path) == [".lock"]
    server.content = b"A film.\nA dog.\n"
    download.download_all([text], tmp_path)
    assert names(tmp_path) == [".lock", "train.en", "train.en.sha256"]


@pytest.mark.parametrize("damage", ["", "http://127.0.0.1", "\n"])
def test_a_damaged_record_of_a_part_starts_over(server, tmp_path, damage):
    begin(server, tmp_path)
    (tmp_path / f"{NAME}.part.version").write_text(damage)
    download.download_all([source(server.url)], tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT and server.ranges == [None, None]


@pytest.mark.parametrize("damage", ["", "\n", "0123  train.en.gz\n"])
def test_a_damaged_record_of_a_checksum_says_what_to_do(tmp_path, damage):
    (tmp_path / NAME).write_bytes(CONTENT)
    (tmp_path / f"{NAME}.sha256").write_text(damage)
    for check in (download.download_all, download.known_digests):
        with pytest.raises(CommandError, match=r"sha256 has no SHA-256; remove it and train"):
            check([source("http://127.0.0.1:9", digest=None)], tmp_path)


def test_a_file_without_an_address_is_named(tmp_path):
    with pytest.raises(CommandError, match=r"cannot download train\.en, which has no address; run"):
        download.download_all([download.Source("train.en", ())], tmp_path)


def test_no_such_file_and_no_server_say_what_to_do(server, tmp_path):
    nowhere = server.url.replace("/files", "/moved")
    download.download_all([source(nowhere, server.url)], tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    with pytest.raises(
        CommandError, match=r"moved/\S+: HTTP Error 404.*; nor .*other\.gz: HTTP Error 404.*--raw"
    ):
        download.download_all([source(nowhere, server.url, name="other.gz")], tmp_path)
    server.server_close()  # from here on a connection is refused
    with pytest.raises(CommandError, match=r"cannot download .*train\.de\.gz.*--raw"):
        download.download_all([source(server.url, name="train.de.gz")], tmp_path)


def test_the_first_download_is_remembered_by_its_checksum(server, tmp_path):
    unpublished = [source(server.url, digest=None)]
    assert download.known_digests(unpublished, tmp_path) is None
    download.download_all(unpublished, tmp_path)
    assert (tmp_path / f"{NAME}.sha256").read_text() == f"{DIGEST}  {NAME}\n"
    assert download.known_digests(unpublished, tmp_path) == {NAME: DIGEST}
    (tmp_path / NAME).write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(CommandError, match=r"is not the first downloaded file.*remove it"):
        download.download_all(unpublished, tmp_path)
    # Removed, as told: what is downloaded now must be what was downloaded then.
    (tmp_path / NAME).unlink()
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(CommandError, match=rf", not {DIGEST}"):
        download.download_all(unpublished, tmp_path)


def test_a_file_put_there_by_hand_is_checked_and_left(tmp_path):
    (tmp_path / NAME).write_bytes(CONTENT)
    download.download_all([source("http://127.0.0.1:9", digest=None)], tmp_path)
    assert (tmp_path / f"{NAME}.sha256").read_text().startswith(DIGEST)
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(CommandError, match=r"train\.en\.gz is not the published file"):
        download.download_all([source("http://127.0.0.1:9")], tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"
    (tmp_path / "train.tgz").write_bytes(b"half")
    with pytest.raises(CommandError, match=r"train\.tgz is truncated or damaged: .*; remove it"):
        download.download_all(
            [source("http://127.0.0.1:9", name="train.tgz", digest=None)], tmp_path
        )
    assert not (tmp_path / "train.tgz.sha256").exists()
