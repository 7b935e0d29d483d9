"""What the readers of schedulers' own tables of test cases share: queues under a policy, and how agreement is told."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddlsched.cluster.tenants import Tenants
from ddlsched.errors import DdlschedError
from ddlsched.policies.quota_tree import QuotaTree
from ddlsched.policies.tenants_view import Admission, HeldQuota, LevelRoom, PendingJobs, RunningJobs, TenantsView
from ddlsched.testing.handmade import job_view
from ddlsched.units import ns_from_s

_NOW_S = 10_000.0
_STARTED_S = 1_000.0


class NotModelledError(Exception):
    """A case concerns what is not modelled; the text says what."""


def refuse(others: Mapping[str, str], there: Collection[str]) -> None:
    """Refuse a case in which something is there that is not modelled, by what it is."""
    for name, why in others.items():
        if name in there:
            raise NotModelledError(why)


class State:
    """Queues, who runs and who waits, as an admission policy sees them."""

    room: LevelRoom | None = None

    def __init__(self, tenants: Tenants, resource_of: Callable[[str], str] = lambda _: "GPU") -> None:
        self.tenants, self.quotas = tenants, QuotaTree(tenants, resource_of)
        self.pending, self.holdings = PendingJobs(tenants.leaves), dict[int, HeldQuota]()
        self.by_queue = {queue: RunningJobs() for queue in tenants.leaves}

    def add(
        self,
        number: int,
        queue: str,
        gpus: int,
        priority: int,
        kind: str | None,
        *times_s: float,
        **more: Any,
    ) -> None:
        """Let a job run on GPUs of a kind, or wait if there is none; it came, and started, at times beside now's."""
        came_s, since_s = (*times_s, 0.0, 0.0)[:2]
        told: dict[str, Any] = {"queue": queue, "priority": priority, "arrival_s": _NOW_S + came_s} | more
        job = job_view(number=number, num_gpus=gpus, **told)
        if kind is None:
            self.pending.add(job)
        else:
            self._hold(HeldQuota.of(job, kind, ns_from_s(_STARTED_S + since_s)))

    def _hold(self, holding: HeldQuota) -> None:
        self.holdings[holding.job.number] = self.by_queue[holding.queue][holding.job.number] = holding
        self.quotas[holding.queue].add(holding.kind, holding.num_gpus)

    def carry_out(self, answer: Admission) -> None:
        """Let a job run in place of its victims."""
        for victim in answer.victims:
            holding = self.holdings.pop(victim.job.number)
            del self.by_queue[holding.queue][victim.job.number]
            self.quotas[holding.queue].remove(holding.kind, holding.num_gpus)
        self.pending.remove(answer.job)
        self._hold(HeldQuota.of(answer.job, answer.kind, ns_from_s(_NOW_S)))

    @property
    def view(self) -> TenantsView:
        """What the policy sees."""
        jobs = self.pending, self.holdings, self.by_queue
        return TenantsView(self.tenants, self.quotas, *jobs, ns_from_s(_NOW_S), 0, self.room)


class Table(NamedTuple):
    """A function with a table of cases, and what decides one: what is decided, and what is wanted."""

    path: str
    function: str
    decide: Callable[[dict[str, Any]], tuple[Any, Any]]


class _Outcome(NamedTuple):
    """A case, and what was decided beside what is wanted; or why it was not tried."""

    name: str
    got: Any = None
    wanted: Any = None
    why_not: str = ""

    @property
    def verdict(self) -> str:
        return "not modelled" if self.why_not else "agreed" if self.got == self.wanted else "differs"

    def __str__(self) -> str:
        return f"{self.verdict}: {self.name}: {self.why_not or f'{self.got}, wanted {self.wanted}'}"


Reader = Callable[[Path, str], Iterable[tuple[str, dict[str, Any]]]]


def _outcomes(clone: Path, table: Table, read: Reader) -> Iterator[_Outcome]:
    for name, case in read(clone / table.path, table.function):
        try:
            yield _Outcome(name, *table.decide(case))
        except NotModelledError as reason:
            yield _Outcome(name, why_not=str(reason))
        except DdlschedError as error:
            yield _Outcome(name, why_not=f"refused: {error}")


def run_tables(repository: str, tables: Iterable[Table], read: Reader, asked: float) -> None:
    """Print how each table agrees and each case that does not; exit with 1 below the share that is asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("clone", type=Path, help=f"a clone of {repository}")
    parser.add_argument("--only", default="", help="a part of the function's name")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    for table in tables:
        if options.only.lower() in table.function.lower():
            found = list(_outcomes(options.clone, table, read))
            counts = Counter(outcome.verdict for outcome in found)
            total += counts
            print(f"{table.path} {table.function}: {_told(counts)}")
            print(*(f"  {outcome}\n" for outcome in found if outcome.verdict != "agreed"), sep="", end="")
    print(f"all: {_told(total)}")
    sys.exit(0 if total["agreed"] >= asked * (total["agreed"] + total["differs"]) else 1)


def _told(counts: Counter[str]) -> str:
    modelled = counts["agreed"] + counts["differs"]
    percent = f" ({100 * counts['agreed'] / modelled:.1f} %)" if modelled else ""
    return f"{counts['agreed']} of {modelled} modelled agree{percent}, {counts['not modelled']} not modelled"
