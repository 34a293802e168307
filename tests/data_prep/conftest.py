"""A server on this machine for the tests of downloading, and the stage prepare of a corpus."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CONTENT = bytes(range(256)) * 1000


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
        same = server.lies or self.headers["If-Range"] in (None, *server.headers.values())
        if self.headers["Range"] and same and not server.plain:
            start = int(self.headers["Range"][len("bytes=") : -1])
            if start >= len(body):
                self.send_error(416)
                return
            status = 206
            self.send_response_only(status)
            self.send_header("Content-Range", server.range_of(start, len(body)))
        else:
            status = 200
            self.send_response_only(status)
        start += server.shift if start else 0
        for name, value in server.headers.items():
            self.send_header(name, value)
        if status in server.says_length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        self.wfile.write(body[start : server.cut])

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def server(monkeypatch):
    """Understands Range unless `plain`, and If-Range unless it `lies`; cuts after `cut` bytes."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.content, running.headers = CONTENT, {"ETag": '"one"'}
        running.cut, running.plain, running.lies, running.shift = None, False, False, 0
        running.says_length = {200, 206}
        running.range_of = lambda start, size: f"bytes {start}-{size - 1}/{size}"
        running.ranges, running.conditions = [], []
        running.url = f"http://127.0.0.1:{running.server_port}/files"
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def prepare():
    """Runs the stage prepare with further flags; returns the manifest."""

    def run(corpus, raw, out, *flags):
        argv = ["--raw", raw, "--out", out, "--only", "prepare", "--workers", "1", *flags]
        corpus.run(list(map(str, argv)))
        return json.loads((out / "manifest.json").read_text())

    return run
