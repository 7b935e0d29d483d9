"""What a user's class costs: compiled, against the built-in one of which it is a twin, and asked in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmark_tables import Table, say

import ddlsched
from ddlsched.testing import python_form


@dataclass(frozen=True, kw_only=True)
class ShorterFirst:
    """Twin of srsf."""

    key_is_linear: ClassVar[bool] = True

    def key(self, job, now_s):
        """Return the remaining service."""
        return job.remaining_service_ns


@dataclass(frozen=True, kw_only=True)
class TwoIfMuchSmaller:
    """Twin of adadual."""

    refusal_lasts: ClassVar[bool] = True

    def admit(self, transfer, network):
        """Return whether the transfer starts."""
        most = network.most_on_links_of(transfer)
        if most != 1:
            return most == 0
        cost = transfer.message_bytes * 2.0 * (network.per_byte_s + network.penalty_per_byte_s)
        return all(cost <= old.bytes_left * network.per_byte_s * (1 + 1e-9) for old in network.met_by(transfer))


@dataclass(frozen=True, kw_only=True)
class OneAtATime:
    """Twin of preemptive:by=time."""

    key_is_linear: ClassVar[bool] = True

    def transfer_key(self, transfer, network):
        """Return the job's remaining time."""
        return transfer.job.remaining_time_ns


@dataclass(frozen=True, kw_only=True)
class SmallerFirst:
    """The README's example, to the letter."""

    limit: int = 2

    def admit(self, transfer, network):
        """Return whether the transfer starts."""
        met = network.met_by(transfer)
        return len(met) < self.limit and all(transfer.message_bytes <= other.bytes_left for other in met)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Twin of 10gbe."""

    latency_s: float = 0.0
    per_byte_s: float = 8.56e-10
    penalty_per_byte_s: float = 2.35e-10
    conserves_bytes: ClassVar[bool] = True

    @property
    def alone_per_byte_s(self):
        """Time of a byte alone."""
        return self.per_byte_s

    def bound_to(self, network):
        """Return itself."""
        return self

    def wire_bytes(self, message_bytes, num_servers):
        """Return the whole message."""
        return message_bytes

    def link_rate(self, transfer, link):
        """Return 1 / (k b + (k - 1) η)."""
        k = link.num_transfers
        return 1.0 / ((k * self.per_byte_s + (k - 1) * self.penalty_per_byte_s) / link.relative_bandwidth)


SCALE = 0.1
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "order srsf": ({"order": "srsf"}, {"order": ShorterFirst()}),
    "communication adadual": ({"communication": "adadual"}, {"communication": TwoIfMuchSmaller()}),
    "communication preemptive:by=time": ({"communication": "preemptive:by=time"}, {"communication": OneAtATime()}),
    "contention 10gbe": ({"contention": "10gbe"}, {"contention": Linear()}),
    "SmallerFirst against bounded-overlap:limit=2": (
        {"communication": "bounded-overlap:limit=2"},
        {"communication": SmallerFirst()},
    ),
}
RUNS = 7


def tables() -> Iterator[Table]:
    """Measure and yield the table."""
    rows = [row(name, *pair) for name, pair in PAIRS.items()]
    title = f"(d) a user's class: microsoft_160(seed=1, scale={SCALE}) under ada-srsf, least of {RUNS} runs in turn"
    columns = ("", "built in, s", "compiled class, s", "ratio", "in Python, s", "ratio", "same finish times")
    notes = ["SmallerFirst decides differently and promises nothing: its times need not be those of bounded overlap."]
    yield Table(title=title, columns=columns, rows=rows, notes=notes)


def row(name: str, built_in: dict[str, Any], users: dict[str, Any]) -> list[str | float]:
    say(name)
    ((kind, policy),) = users.items()
    runs = [(run(built_in), run(users)) for _ in range(RUNS)]
    built_in_s, users_s = (min(result.finished.engine_s for result in results) for results in zip(*runs, strict=True))
    python = run({kind: python_form(policy)})
    python_s = python.finished.engine_s
    assert finishes(python) == finishes(runs[0][1]), "both forms agree"
    same = "yes" if finishes(runs[0][0]) == finishes(runs[0][1]) else "no"
    return [name, built_in_s, users_s, users_s / built_in_s, python_s, python_s / built_in_s, same]


def run(plugins: dict[str, Any]) -> ddlsched.Result:
    return ddlsched.simulate(ddlsched.microsoft_160(seed=1, scale=SCALE), **plugins)


def finishes(result: ddlsched.Result) -> list[int]:
    return result.finished.state.jobs.finish_ns.tolist()
