"""A download is resumed only if the result is one version of the file."""

from __future__ import annotations

import itertools

import pytest

from prep import transfer

OLD = {"Last-Modified": "Sat, 01 Jan 2022 00:00:00 GMT", "Date": "Sat, 01 Jan 2022 00:01:00 GMT"}
NEW = {**OLD, "Date": "Sat, 01 Jan 2022 00:00:59 GMT"}


@pytest.fixture
def part(tmp_path):
    return tmp_path / "train.en.part"


def begin(server, part, size=100_000):
    """Download the first `size` bytes, and no more."""
    server.cut = size
    with pytest.raises(OSError, match=rf"ended after {size:,} of 256,000 bytes"):
        transfer.fetch_rest(f"{server.url}/train.en", part)
    server.cut = None


def go_on(server, part):
    """The bytes after a second call, and whether it asked for the whole file again."""
    server.ranges.clear()
    transfer.fetch_rest(f"{server.url}/train.en", part)
    return part.read_bytes(), None in server.ranges


@pytest.mark.parametrize(
    ("headers", "condition"), [({"ETag": '"one"'}, '"one"'), (OLD, OLD["Last-Modified"])]
)
@pytest.mark.parametrize("size", [0, 1000, 255_999])
def test_what_is_lacking_is_asked_for_by_version(server, part, headers, condition, size):
    server.headers = headers
    begin(server, part, size)
    assert go_on(server, part) == (server.content, False)
    assert server.conditions == [None, condition]


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}, {"ETag": "bare"}, NEW])
def test_without_a_strong_validator_it_starts_over(server, part, headers, capsys):
    server.headers = headers
    begin(server, part)
    assert go_on(server, part) == (server.content, True)
    assert server.ranges == [None]
    assert "train.en from the start: no validator is stored" in capsys.readouterr().err


@pytest.mark.parametrize("lies", [False, True])
def test_a_file_that_has_changed_starts_over(server, part, lies):
    begin(server, part)
    server.lies = lies  # sends a part of the new one, in spite of If-Range
    server.content, server.headers = server.content[::-1], {"ETag": '"two"'}
    assert go_on(server, part) == (server.content, True)


def test_a_file_that_has_changed_under_the_same_validator(server, part):
    begin(server, part)
    server.content = server.content[::-1]
    assert go_on(server, part) == (server.content, True)


def test_another_size_is_another_file(server, part):
    begin(server, part)
    server.content += b"more"
    assert go_on(server, part) == (server.content, True)


@pytest.mark.parametrize(
    "given",
    ["", "bytes 0-255999/256000", "bytes 34464-255998/256000", "bytes 34464-255999/*", "bytes x"],
)
def test_another_range_than_the_one_asked_for(server, part, given):
    begin(server, part)
    server.range_of = lambda start, size: given
    assert go_on(server, part) == (server.content, True)


@pytest.mark.parametrize("says_length", [{200}, {200, 206}])
def test_a_206_with_the_wrong_bytes(server, part, says_length):
    begin(server, part)
    server.shift, server.says_length = 1, says_length
    assert go_on(server, part) == (server.content, True)


def test_a_file_of_unknown_length_is_not_taken(server, part):
    server.says_length = {206}
    with pytest.raises(OSError, match="the server does not say how long the file is"):
        transfer.fetch_rest(f"{server.url}/train.en", part)


def test_a_server_without_ranges(server, part):
    begin(server, part)
    server.plain = True
    assert go_on(server, part) == (server.content, True)


def test_a_part_that_is_whole_or_too_long(server, part):
    begin(server, part)
    part.write_bytes(server.content)
    assert go_on(server, part) == (server.content, False)
    part.write_bytes(server.content + b"more")
    assert go_on(server, part) == (server.content, True)


def test_another_address_is_another_file(server, part):
    begin(server, part)
    transfer.fetch_rest(f"{server.url}/train.de", part)
    assert server.ranges == [None, None]


@pytest.mark.parametrize("memory", ["", "[]", '{"url": 1}', '{"validator": 5}'])
def test_a_memory_that_is_damaged(server, part, memory):
    begin(server, part)
    part.with_name("train.en.part.json").write_text(memory)
    assert go_on(server, part) == (server.content, True)


# ---- slow servers -------------------------------------------------------------------------------


def test_a_server_that_trickles_is_given_up(server, part, monkeypatch):
    ticks = itertools.count(0, 1000)  # seconds between two looks at the clock
    monkeypatch.setattr(transfer, "clock", lambda: next(ticks))
    with pytest.raises(OSError, match=r"only [\d,]+ bytes in 1000 s, and [\d,]+ of 256,000"):
        transfer.fetch_rest(f"{server.url}/train.en", part)
    assert part.stat().st_size < len(server.content)


def test_a_slow_download_says_how_far_it_is(server, part, monkeypatch, capsys):
    ticks = itertools.count(0, 40)
    monkeypatch.setattr(transfer, "clock", lambda: next(ticks))
    monkeypatch.setattr(transfer, "SLOWEST", 0)
    transfer.fetch_rest(f"{server.url}/train.en", part)
    assert "download train.en: " in capsys.readouterr().err
    assert part.read_bytes() == server.content
