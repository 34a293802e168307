"""Downloading against a server on this machine: whole, resumed, wrong, not there."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import fetch
from steps import PrepError

CONTENT = bytes(range(256)) * 1000
DIGESTS = {"train.en.gz": hashlib.sha256(CONTENT).hexdigest()}


class Handler(BaseHTTPRequestHandler):
    """Serves the server's `content`; understands Range unless `plain`; cuts after `cut` bytes."""

    def do_GET(self):
        server = self.server
        server.ranges.append(self.headers["Range"])
        body, start = server.content, 0
        if self.path != "/files/train.en.gz":
            self.send_error(404)
            return
        if self.headers["Range"] and not server.plain:
            start = int(self.headers["Range"][len("bytes=") : -1])
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : server.cut])

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.content, running.plain, running.cut, running.ranges = CONTENT, False, None, []
        running.url = f"http://127.0.0.1:{running.server_port}/files"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_download_once(server, tmp_path):
    folder = tmp_path / "raw"
    fetch.download_all(server.url, DIGESTS, folder)
    assert (folder / "train.en.gz").read_bytes() == CONTENT
    fetch.download_all(server.url, DIGESTS, folder)
    assert server.ranges == [None]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "train.en.gz"]


def test_a_broken_connection_is_resumed(server, tmp_path):
    server.cut = 100_000
    with pytest.raises(PrepError, match=r"ended after 100,000 of 256,000 bytes.*same command"):
        fetch.download_all(server.url, DIGESTS, tmp_path)
    assert not (tmp_path / "train.en.gz").exists()
    server.cut = None
    fetch.download_all(server.url, DIGESTS, tmp_path)
    assert server.ranges == [None, "bytes=100000-"]
    assert (tmp_path / "train.en.gz").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.plain = True
    (tmp_path / "train.en.gz.part").write_bytes(b"x" * 1000)
    fetch.download_all(server.url, DIGESTS, tmp_path)
    assert (tmp_path / "train.en.gz").read_bytes() == CONTENT


def test_a_part_that_is_whole_is_taken(server, tmp_path):
    (tmp_path / "train.en.gz.part").write_bytes(CONTENT)
    fetch.download_all(server.url, DIGESTS, tmp_path)
    assert (tmp_path / "train.en.gz").read_bytes() == CONTENT


def test_a_wrong_checksum_is_not_kept(server, tmp_path):
    server.content = CONTENT[:-1] + b"!"
    expected = DIGESTS["train.en.gz"]
    with pytest.raises(
        PrepError, match=rf"train\.en\.gz has SHA-256 \w{{64}}, expected {expected}"
    ):
        fetch.download_all(server.url, DIGESTS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_wrong_file_in_the_folder_is_named_and_left(server, tmp_path):
    (tmp_path / "train.en.gz").write_bytes(b"mine")
    with pytest.raises(PrepError, match=r"train\.en\.gz is not the published file"):
        fetch.download_all(server.url, DIGESTS, tmp_path)
    assert (tmp_path / "train.en.gz").read_bytes() == b"mine"


def test_no_such_file_and_no_server_say_what_to_do(server, tmp_path):
    with pytest.raises(PrepError, match=r"other\.gz: HTTP Error 404.*--raw"):
        fetch.download_all(server.url, {"other.gz": "0" * 64}, tmp_path)
    digests = {"train.en.gz": "0" * 64, "train.de.gz": "0" * 64}
    server.server_close()  # from here on a connection is refused
    with pytest.raises(PrepError, match=r"put train\.en\.gz, train\.de\.gz into .*--raw"):
        fetch.download_all(server.url, digests, tmp_path)
