"""JSON texts read value by value, without holding the whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn, TextIO

from ddlsched.errors import InputError
from ddlsched.io.tables import first_line

__all__ = ["JsonScanner"]

_CHUNK: Final = 1 << 20
_LONGEST_ELEMENT: Final = 1 << 26
_SPACE = re.compile(r"\s*")


class JsonScanner:
    """A window on a JSON text that moves on as its values are read."""

    def __init__(self, name: str, text: TextIO) -> None:
        self.name, self.text, self.window, self.at, self.line = name, text, "", 0, 1
        self.decoder = json.JSONDecoder()

    def next_character(self) -> str:
        """Return the next character that is no space, "" at the end."""
        while True:
            space = _SPACE.match(self.window, self.at)
            self._move(space.end() if space else self.at)
            if self.at < len(self.window):
                return self.window[self.at]
            if not self._refill():
                return ""

    def value(self) -> Any:
        """Return the value that begins here, and move on.

        Raises
        ------
        InputError
            It is no JSON, not whole, or too long.
        """
        while True:
            try:
                value, end = self.decoder.raw_decode(self.window, self.at)
            except (ValueError, RecursionError) as error:
                if len(self.window) - self.at > _LONGEST_ELEMENT or not self._refill():
                    self.refuse(f"is no JSON ({first_line(error)}); expected a whole JSON text")
                continue
            if end == len(self.window) and self._refill():
                continue  # A number may go on beyond the window.
            self._move(end)
            return value

    def elements(self) -> Iterator[tuple[int, Any]]:
        """Yield the elements of the array that begins here, each with the line on which it begins.

        Raises
        ------
        InputError
            While iterating: there is no array.
        """
        self._begin("[", "a JSON array")
        while self.next_character() != "]":
            line = self.line
            yield line, self.value()
            self._separate("]")
        self.at += 1

    def members(self) -> Iterator[str]:
        """Yield the keys of the object that begins here; the caller reads each value before the next.

        Raises
        ------
        InputError
            While iterating: there is no object.
        """
        self._begin("{", "a JSON object")
        while self.next_character() != "}":
            key = self.value()
            if not isinstance(key, str) or self.next_character() != ":":
                self.refuse("expected a name and : before each value of an object")
            self.at += 1
            yield key
            self._separate("}")
        self.at += 1

    def _begin(self, bracket: str, what: str) -> None:
        if self.next_character() != bracket:
            self.refuse(f"expected {what}")
        self.at += 1

    def _separate(self, end: str) -> None:
        if self.next_character() == ",":
            self.at += 1
        elif self.next_character() != end:
            self.refuse(f"expected , or {end} here")

    def refuse(self, why: str) -> NoReturn:
        """Raise InputError with the line that has been reached."""
        raise InputError(f"{self.name}, line {self.line}: {why}")

    def _move(self, to: int) -> None:
        self.line += self.window.count("\n", self.at, to)
        self.at = to

    def _refill(self) -> bool:
        more = self.text.read(_CHUNK)
        self.window, self.at = self.window[self.at :] + more, 0
        return bool(more)
