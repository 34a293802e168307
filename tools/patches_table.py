"""The table of the functions of fairseq that the plugin wraps."""

from __future__ import annotations

import re

from markdown_table import markdown
from norm_plugin.models import patches

ENTRY = re.compile(
    r"^(fairseq[\w.]+)\n    why: (.+(?:\n {8}.+)*)\n    test: (.+)$", flags=re.MULTILINE
)


def patches_by_function() -> dict[str, tuple[str, str]]:
    """Why each function of fairseq is wrapped, and the test of that."""
    return {
        function: (" ".join(why.split()), test)
        for function, why, test in ENTRY.findall(patches.__doc__ or "")
    }


def patches_table() -> str:
    """Markdown: a row for each function."""
    rows = [("function", "reason", "test")]
    rows += [(f"`{name}`", why, f"`{test}`") for name, (why, test) in patches_by_function().items()]
    return markdown(rows)
