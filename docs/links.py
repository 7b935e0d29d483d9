"""Checks that every file and every heading is there that pages of the built site link to or show: ``links.py FOLDER``.

Addresses of other sites are left alone, so that no network is needed.
"""

from __future__ import annotations

import html
import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

_LINK = re.compile(r"\b(?:href|src)=\"([^\"#?]*)[^\"#]*(?:#([^\"]*))?\"")
_NAME = re.compile(r"\b(?:id|name)=\"([^\"]+)\"")
_OUTSIDE = re.compile(r"[a-z]+:|//|\{\{")


def missing(folder: Path) -> list[str]:
    """Return a line a link of a page in the folder, or below, that leads nowhere."""
    return [
        f"{page.relative_to(folder)}: {path}{'#' + anchor if anchor else ''}"
        for page in sorted(folder.rglob("*.html"))
        for path, anchor in sorted(set(_LINK.findall(page.read_text(encoding="utf-8"))))
        if not _OUTSIDE.match(path) and not _is_there(page, html.unescape(path), html.unescape(anchor))
    ]


def _is_there(page: Path, path: str, anchor: str) -> bool:
    target = (page.parent / unquote(path)).resolve() if path else page.resolve()
    return target.exists() and (not anchor or target.suffix != ".html" or unquote(anchor) in _names(target))


@cache
def _names(page: Path) -> set[str]:
    return set(_NAME.findall(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    found = missing(Path(sys.argv[1]))
    print("".join(f"{line}: leads nowhere\n" for line in found), end="", file=sys.stderr)
    sys.exit(1 if found else 0)
