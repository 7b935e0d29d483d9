"""What many cases gave when each part had been checked by other means: a fault on their way changes a number.

``golden/kept`` has a line a case. ``KEEP=1 python -m pytest TEST`` writes anew what a change of results was to change;
what it changed besides, the difference of the file shows.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.errors import InputError

FOLDER = Path(__file__).parent / "golden" / "kept"


def short(*numbers: Any) -> str:
    """Return numbers with nine digits, so that the last bits of another processor's library do not count."""
    return " ".join(f"{float(number):.9g}" for number in numbers)


def digest(parts: Iterable[Any]) -> str:
    """Return eight digits for what is too long to keep: numbers as they are, and texts."""
    found = 0
    for part in parts:
        told = part.tobytes() if isinstance(part, np.ndarray) and part.dtype != object else str(part).encode()
        found = zlib.crc32(told + b"\n", found)
    return f"{found:08x}"


def answered(make: Callable[..., Any], /, *given: Any, **named: Any) -> str:
    """Return what something gives, or how it is refused, in words."""
    try:
        return str(make(*given, **named))
    except InputError as error:
        return str(error)


def assert_kept(name: str, found: Mapping[str, str]) -> None:
    """Assert that each case gave what it gave."""
    file = FOLDER / f"{name}.txt"
    lines = [f"{case}: {told}" for case, told in found.items()]
    if os.environ.get("KEEP"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
    assert lines == file.read_text().splitlines()
