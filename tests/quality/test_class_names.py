"""No two public classes of the product share a name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def public_classes() -> dict[str, list[str]]:
    """Return where each public class of a module's own level is defined."""
    places: dict[str, list[str]] = defaultdict(list)
    for package in ("ddlsched", "algorithms", "topologies"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in re.findall(r"(?m)^class ([A-Za-z]\w*)", path.read_text(encoding="utf-8")):
                places[name].append(str(path.relative_to(ROOT)))
    return places


@pytest.mark.long
def test_public_classes_have_names_of_their_own() -> None:
    places = public_classes()
    assert len(places) > 300
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
