"""Reads the XML and SGM of IWSLT and WMT line by line, as fairseq's preparation scripts do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

SEGMENT_START = re.compile(r'<seg id="[0-9]*">\s*')
SEGMENT_END = re.compile(r"\s*</seg>\s*")
LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
TAGS = re.compile(r"</?(?:title|description)>")


def segments(lines: Iterable[str]) -> Iterator[str]:
    """The text of every line that contains `<seg id`. Entities such as `&amp;` stay."""
    for line in lines:
        if "<seg id" in line:
            yield SEGMENT_END.sub("", SEGMENT_START.sub("", line)).strip()


def talks(lines: Iterable[str]) -> Iterator[str]:
    """The text of IWSLT's train.tags files: without addresses and keywords, titles without tags."""
    for line in lines:
        if not any(tag in line for tag in LEFT_OUT):
            yield TAGS.sub("", line)
