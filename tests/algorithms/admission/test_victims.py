"""Who gives way by Kueue's rules is who a plain search over all sorted candidates finds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from reference_victims import classic_victims as plain_victims
from tiers import examples

from algorithms.admission import kueue, kueue_classic
from algorithms.admission.kueue_classic import _RULES, ClassicSearch, _may_preempt
from algorithms.admission.victims import Need
from ddlsched import Cluster, DataParallelIteration, Job, Quota, Workload, simulate
from ddlsched.cluster.tenants import Preemption, Queue, Tenants
from ddlsched.engine.native.jit import runs_in_python
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import HeldQuota, TenantsView, Victim
from ddlsched.testing.admission_conformance import Case, Submission, play, random_case
from ddlsched.testing.handmade import job_view

pytestmark = pytest.mark.drawn
RULES = ["never", "lower-priority", "lower-or-newer", "any"]


def _with_more_rules(case: Case, rng: np.random.Generator) -> Case:
    def drawn(queue: Queue) -> Queue:
        rules = Preemption(
            within_queue=str(rng.choice(RULES[:3])),  # type: ignore[arg-type]
            reclaim=str(rng.choice(["never", "lower-priority", "any"])),  # type: ignore[arg-type]
            borrow=str(rng.choice(RULES[:2])),  # type: ignore[arg-type]
            borrow_max_priority=None if rng.random() < 0.5 else int(rng.integers(0, 2)),
        )
        return replace(queue, preemption=rules)

    queues = [queue if queue.name == "root" else drawn(queue) for queue in case.tenants.queues]
    leaves = [queue.name for queue in queues if len(queue.name) == 1]
    jobs = [Submission(str(rng.choice(leaves)), int(rng.integers(1, 5)), int(rng.integers(0, 3))) for _ in range(14)]
    return Case(Tenants(queues=tuple(queues)), tuple(jobs))


@pytest.mark.slow
@pytest.mark.skipif(runs_in_python(), reason="is what it runs")
def test_uncompiled_no_search_reads_or_writes_beyond_its_arrays() -> None:
    uncompiled = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    test = f"{__file__}::test_who_has_no_room_finds_no_victims_at_its_level[0]"
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-n0", test], env=uncompiled, check=True)


@pytest.mark.long
def test_victims_are_those_of_a_plain_search(monkeypatch: pytest.MonkeyPatch) -> None:
    victims, sizes = ClassicSearch.victims, list[int]()

    def both(search: ClassicSearch, need: Need, tenants: TenantsView) -> tuple[list[Victim], int]:
        expected = plain_victims(need, tenants)
        found, height = victims(search, need, tenants)
        with kueue._gone(found, need.kind, tenants):
            assert not found or height == kueue._group_that_fits(need)[0]
        assert [(each.job.number, each.reason) for each in found] == [
            (each.job.number, each.reason) for each in expected
        ]
        sizes.append(len(found))
        return found, height

    monkeypatch.setattr(ClassicSearch, "victims", both)
    seeds = examples(300, by_default=60)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        play(_with_more_rules(random_case(rng), rng), kueue.Kueue())
    assert min(sizes.count(0), sizes.count(1)) > seeds / 3
    assert sum(size > 1 for size in sizes) > seeds / 30


@pytest.mark.long
def test_who_has_no_hope_finds_neither_room_nor_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    among, counts = kueue.HopefulJobs.among, Counter[tuple[bool, bool]]()

    def checked(bound: kueue.HopefulJobs, tenants: TenantsView) -> dict[int, QuotaNode]:
        hopeful = among(bound, tenants)
        for leaf in tenants.quotas.leaves:
            for job in tenants.pending.heads(leaf.name):
                need = Need(job, leaf, "any")
                may_start = need.fits() or bool(plain_victims(need, tenants))
                assert job.number in hopeful or not may_start
                counts[job.number in hopeful, may_start] += 1
        return hopeful

    monkeypatch.setattr(kueue.HopefulJobs, "among", checked)
    seeds = examples(100, by_default=25)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        play(_with_more_rules(random_case(rng), rng), kueue.Kueue())
    assert min(counts[False, False], counts[True, True]) > seeds
    assert counts[True, False] < counts[False, False]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_who_has_no_room_finds_no_victims_at_its_level(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    among, counts = kueue.RoomBound.among, Counter[tuple[bool, bool]]()

    def checked(bound: kueue.RoomBound, tenants: TenantsView, jobs: dict[int, QuotaNode]) -> dict[int, QuotaNode]:
        without = among(bound, tenants, jobs)
        assert without == among(kueue.RoomBound(bound._arrays, bound._kind), tenants, jobs), "what it remembers is old"
        for number, leaf in jobs.items():
            job = tenants.pending.job(number)
            if tenants.room is not None and not tenants.room.suffices(job):
                found, _ = ClassicSearch(bound._arrays).victims(Need(job, leaf, "any"), tenants)
                assert number not in without or not found
                counts[number in without, bool(found)] += 1
        return without

    monkeypatch.setattr(kueue.RoomBound, "among", checked)
    rng = np.random.default_rng(seed)
    rules = [
        Preemption(
            within_queue=str(rng.choice(RULES[:3])),  # type: ignore[arg-type]
            reclaim=str(rng.choice(RULES[1:])),  # type: ignore[arg-type]
            borrow=str(rng.choice(RULES[:2])),  # type: ignore[arg-type]
        )
        for _ in range(6)
    ]
    quota = {"any": Quota(gpus=10, borrowing_limit=20 if seed else None, lending_limit=8 if seed == 2 else None)}
    leaves = [Queue(name=f"q{n}", parent=f"g{n % 2}", quotas=quota, preemption=rules[n]) for n in range(6)]
    queues = [Queue(name="all"), Queue(name="g0", parent="all"), Queue(name="g1", parent="all"), *leaves]
    step = DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=0)
    jobs = [
        Job(
            job_id=f"j{number}",
            arrival_s=float(rng.integers(0, 400)),
            num_gpus=int(rng.choice([1, 2, 4, 8])),
            iterations=int(rng.integers(20, 120)),
            iteration=step,
            gpu_memory_mb=1.0,
            queue=f"q{rng.integers(0, 6)}",
            priority=int(rng.integers(0, 4)),
            required_levels=[None, "server", "rack"][rng.integers(0, 3)],
        )
        for number in range(200)
    ]
    cluster = Cluster(num_servers=8, gpus_per_server=8, exclusive=True, topology="clos:servers_per_rack=2")
    policies = {"placement": "kueue-topology", "admission": "kueue"}
    simulate(Workload.of(jobs), cluster, queues=Tenants(queues=tuple(queues)), **policies)
    assert min(counts[True, False], counts[False, True]) > 30


def test_only_who_holds_gpus_of_the_kind_gives_way() -> None:
    job = job_view(number=0, num_gpus=1)
    held = [HeldQuota.of(job, kind, since_ns=0) for kind in ("a100", "h100")]
    tenants = cast(Any, SimpleNamespace(now_ns=1, ordered=lambda _: enumerate(held)))
    assert Need(job, cast(Any, None), "h100").candidates(tenants, "queue", "any") == held[1:]


@pytest.mark.parametrize(
    ("arrival_ns", "number", "is_newer"), [(6, 0, True), (5, 8, True), (5, 7, False), (5, 6, False), (4, 9, False)]
)
def test_of_equal_priority_who_came_later_gives_way(arrival_ns: int, number: int, is_newer: bool) -> None:
    """Of two that came at once the one with the higher number did; 7, who asks, came at 5 ns with priority 3."""
    asked, row = [1, 3, 5, 7, 0, 100], [3, -1, number, 0, arrival_ns, 0]
    may_preempt = getattr(_may_preempt, "py_func", _may_preempt)
    assert may_preempt(row, _RULES["lower-or-newer"], asked) is is_newer
    assert not may_preempt(row, _RULES["lower-priority"], asked)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the search's functions with nothing compiled: what goes beyond an array or never ends fails."""
    for name, made in vars(kueue_classic).items():
        monkeypatch.setattr(kueue_classic, name, getattr(made, "py_func", made))
    return kueue_classic


@pytest.mark.parametrize(
    ("place", "gpus", "used", "height"),
    [
        (0, 1, [1, 3, 5, 2, 0], 0),
        (0, 1, [2, 3, 5, 2, 0], 1),
        (0, 3, [0, 2, 5, 2, 0], 1),  # of which one is kept for it
        (0, 3, [1, 2, 3, 2, 0], 2),
        (0, 1, [2, 4, 5, 2, 0], 2),
        (0, 1, [2, 4, 6, 2, 0], 2),  # no group has it
        (3, 9, [2, 4, 6, 2, 0], 0),
    ],
)
def test_how_high_the_smallest_group_is_that_has_what_a_queue_needs(
    parts: Any, place: int, gpus: int, used: list[int], height: int
) -> None:
    """Queue 0 is in group 1, which is in 2; queue 3 in none. Above 4, which stands for none, nothing is looked for."""
    parents, heights = [1, 2, 4, 4, 99], [0, 1, 2, 0, 0]
    amounts = np.array([[2, 4, 6, 2, 0], [1, 0, 0, 0, 0]])
    assert parts._height(place, gpus, parents, used, amounts, heights) == height


def test_a_queue_has_the_room_above_it_and_what_others_of_its_group_give_up(parts: Any) -> None:
    """The level's units are the last two of three; queue 0 is in group 1, above which is none."""
    parents, free = np.array([1, 2, 2]), np.array([1, 2])
    of_node, of_group = np.array([[9, 2, 3], [0, 0, 0], [0, 0, 0]]), np.array([[0, 0, 0], [8, 5, 7], [0, 0, 0]])
    room, most_of = np.zeros((3, 2), np.int64), np.zeros(3, np.int64)
    for node in (2, 1, 0):
        parts._fill_room(node, room, most_of, free, 1, (of_node, of_group), parents)
    assert room.tolist() == [[1 + 5 - 2, 2 + 7 - 3], [1, 2], [1, 2]]
    assert most_of.tolist() == [6, 2, 2]


def test_what_is_given_up_is_counted_anew_up_to_the_root_where_jobs_are_others_or_had_just_started(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue 0 is in group 1, which is in 2; queue 3 in 2. Above 4, which stands for none, nothing is looked for."""
    counted: list[int] = []
    monkeypatch.setattr(parts, "_give_up", lambda node, *_: counted.append(node))
    rows, counts, changes = np.zeros((5, 1, 7), np.int64), np.array([1, 0, 0, 0, 0]), np.array([7, 7])
    rows[0, 0, 1] = -5  # started at 5 ns
    counts_of, known, fresh = np.zeros((2, 5, 1), np.int64), np.array([-1, -1]), np.array([-1, -1])
    given_up = (*counts_of,), known, fresh, (np.ones((5, 4)), None)

    def noted(now_ns: int) -> list[int]:
        counted.clear()
        tree = [1, 2, 4, 2, 99], np.zeros(5, np.int64), None
        asked, scratch = [0, 0, 0, 0, 0, now_ns], np.zeros((4, 5), np.int64)
        parts._note_given_up([0, 3], changes, given_up, (rows, counts), tree, asked, None, scratch)
        return sorted(counted)

    assert noted(5) == [0, 1, 3]
    assert noted(5) == []
    assert noted(6) == [0, 1]  # the job may be preempted now
    changes[1] += 1
    assert noted(6) == [3]
    assert known.tolist() == [7, 8]
    assert fresh.tolist() == [-1, -1]
