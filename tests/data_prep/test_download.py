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
    """Serves the server's `content`."""

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers["Range"])
        if not self.path.startswith("/files/train"):
            self.send_error(404)
            return
        body, start = server.content, 0
        if self.headers["Range"] and not server.plain:
            start = int(self.headers["Range"][len("bytes=") : -1])
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response_only(206)
        else:
            self.send_response_only(200)
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
        running.content, running.cut, running.plain, running.ranges = CONTENT, None, False, []
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
    ("digest", "second"),
    [(DIGEST, "bytes=99999-"), (None, None)],  # nothing shows that the rest is of the same file
)
def test_a_broken_connection_is_resumed(server, tmp_path, digest, second):
    begin(server, tmp_path, digest)
    download.download_all([source(server.url, digest=digest)], tmp_path)
    assert server.ranges == [None, second]
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert names(tmp_path) == [".lock", NAME]


def test_without_a_checksum_another_address_sends_the_whole(server, tmp_path):
    server.cut = 100_000
    with pytest.raises(CommandError, match="ended after"):
        download.download_all([source(server.url, server.url, digest=None)], tmp_path)
    assert server.ranges == [None, None]


def test_a_part_that_is_whole_needs_one_byte(server, tmp_path):
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)  # killed before it got its name
    download.download_all([source(server.url)], tmp_path)
    assert server.ranges == ["bytes=255999-"]


def test_a_server_that_sends_no_part_sends_the_whole(server, tmp_path):
    begin(server, tmp_path)
    server.plain = True
    download.download_all([source(server.url)], tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("size", "message"), [(3000, "is not the published file"), (256_002, "HTTP Error 416")]
)
def test_a_part_of_an_older_file_starts_over(server, tmp_path, size, message):
    (tmp_path / f"{NAME}.part").write_bytes(b"x" * size)
    with pytest.raises(CommandError, match=message):
        download.download_all([source(server.url)], tmp_path)
    download.download_all([source(server.url)], tmp_path)
    assert (tmp_path / NAME).read_bytes() == CONTENT and server.ranges[-1] is None


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
    assert names(tmp_path) == [".lock", "train.en"]


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


def test_a_file_put_there_by_hand_is_checked_and_left(tmp_path):
    (tmp_path / NAME).write_bytes(CONTENT)
    download.download_all([source("http://127.0.0.1:9", digest=None)], tmp_path)
    (tmp_path / NAME).write_bytes(b"mine")
    with pytest.raises(CommandError, match=r"train\.en\.gz is not the published file"):
        download.download_all([source("http://127.0.0.1:9")], tmp_path)
    assert (tmp_path / NAME).read_bytes() == b"mine"
    (tmp_path / "train.tgz").write_bytes(b"half")
    with pytest.raises(CommandError, match=r"train\.tgz is truncated or damaged: .*; remove it"):
        download.download_all(
            [source("http://127.0.0.1:9", name="train.tgz", digest=None)], tmp_path
        )
