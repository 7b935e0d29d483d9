"""Calls in several processes, with a bar on stderr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from joblib import Parallel, delayed

from ddlsched.io.progress import progress_bar
from ddlsched.simulation import warm_up

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Workers:
    """So many processes; -1 is one a core, and with 1 all is done in this one."""

    processes: int

    def do(self, title: str, function: Callable[..., Answer], arguments: Sequence[tuple[object, ...]]) -> list[Answer]:
        """Return what the function says of each tuple of arguments, in their order."""
        warm_up()  # compiled once, before each process would do it
        answers: list[Answer] = []
        with progress_bar(title) as watch:
            watch(0, len(arguments), None)
            calls = (delayed(function)(*each) for each in arguments)
            for answer in Parallel(self.processes, return_as="generator")(calls):
                answers.append(answer)
                watch(len(answers), len(arguments), None)
        return answers
