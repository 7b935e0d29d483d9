"""Jobs that save their state and lose their servers, against a reference that follows a job alone, in whole ns."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from jobs_by_hand import data_parallel_job
from reference_simulator import reference_simulate
from tiers import examples, tried

import ddlsched
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from topologies.star import Star

S = 1_000_000_000


def reference(work, outages, *, every_ns, write_ns, share, restart_ns):
    """Return when a job on a server of its own finishes, and the work that it loses, nanoseconds.

    ``work`` is its iterations and the time of one; ``outages`` are the (from, to) of its server, in order. It waits
    for its server after each. A checkpoint holds it up for ``share`` of ``write_ns`` and is safe after all of it.
    A failure comes before a checkpoint that would begin at the same instant, as changes of capacity do in every step.
    """
    iterations, iteration_ns = work
    now_ns, left, lost_ns, ahead = 0, iterations, 0, list(outages)
    safe, pending = left, None  # iterations left in the last safe checkpoint; one under way: left, and safe from when
    begin_ns = now_ns
    while True:
        fails_ns = ahead[0][0] if ahead else None
        end_ns = max(now_ns, begin_ns) + iteration_ns
        if fails_ns is not None and fails_ns < end_ns:
            if pending and pending[1] <= fails_ns:
                safe = pending[0]
            pending, begun_ns = None, max(now_ns, begin_ns)
            lost_ns += (safe - left) * iteration_ns + max(fails_ns - begun_ns, 0)
            left, now_ns = safe, ahead.pop(0)[1]
            begin_ns = now_ns + restart_ns + write_ns
            continue
        now_ns, left = end_ns, left - 1
        if left == 0:
            return now_ns, lost_ns
        if now_ns - begin_ns > max(every_ns, write_ns if share else 1) and now_ns != fails_ns:
            if pending:
                safe = pending[0]
            begin_ns = now_ns + (round(write_ns * share) if share else write_ns)
            pending = left, now_ns + write_ns


@pytest.mark.long
@pytest.mark.parametrize(("seed", "noticed_s"), tried([(0, inf), (1, 8.0), (2, 8.0)], lambda place: place < 2))
def test_periods_end_where_a_gpu_becomes_slow_as_in_the_reference_simulator(seed, noticed_s) -> None:
    slow = FailureCause(cause="slow", per="gpu", mtbf_s=60.0, noticed_s=noticed_s, repair_s=3.0, slowdown=1.7)
    sizes = {"a": (3, 0.0, 2e6), "b": (1, 1.0, 0.0), "c": (2, 2.5, 2e6), "d": (4, 6.0, 0.0)}
    jobs = [
        data_parallel_job(
            name, gpus=gpus, iterations=3000, forward_s=0.004, backward_s=0.006, message_bytes=sent, arrival_s=s
        )
        for name, (gpus, s, sent) in sizes.items()
    ]
    given_both = {
        "placement": "first-fit",
        "order": "srsf",
        "communication": "bounded-overlap:limit=2",
        "contention": "linear",
        "disturbances": Disturbances(failures=(slow,), restart_s=0.5),
        "until_s": 40.0,
        "seed": seed,
    }
    workload, cluster = ddlsched.Workload.of(jobs), ddlsched.Cluster(num_servers=3, gpus_per_server=2)
    result = ddlsched.simulate(workload, cluster, **given_both)
    assert result.finished.state.run[0].jumps > 100
    assert result.finished.failures
    expected = reference_simulate(workload, cluster, topology=Star(), **given_both).jobs
    for record, outcome in zip(result.finished.state.jobs, expected.values(), strict=True):
        assert (record.finish_ns, record.busy_ns) == (outcome.finish_ns, outcome.busy_ns)
        assert (record.lost_ns, record.restarts) == (outcome.lost_ns, outcome.restarts)


@st.composite
def outages_of_servers(draw, servers):
    times = [draw(st.lists(st.integers(1, 60), max_size=8, unique=True).map(sorted)) for _ in range(servers)]
    return [list(pairwise(at))[::2] for at in times]


@pytest.mark.long
@settings(max_examples=examples(40, by_default=15))
@given(
    jobs=st.lists(st.tuples(st.integers(1, 15), st.integers(1, 4)), min_size=1, max_size=3),
    outages=outages_of_servers(3),
    every_s=st.integers(1, 12),
    write_s=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.25]),
    restart_s=st.integers(0, 3),
)
def test_finish_times_and_lost_work_are_those_of_the_reference(jobs, outages, every_s, write_s, share, restart_s):
    """Servers of two GPUs, a job of two on each: who comes first has the first server."""
    result = ddlsched.simulate(
        ddlsched.Workload.of(
            [data_parallel_job(f"j{n}", gpus=2, iterations=many, backward_s=s) for n, (many, s) in enumerate(jobs)]
        ),
        ddlsched.Cluster(num_servers=3, gpus_per_server=2, exclusive=True),
        placement="first-fit",
        order="fifo",
        disturbances=Disturbances(
            outages=tuple(Outage(server=n, from_s=a, to_s=b) for n, pairs in enumerate(outages) for a, b in pairs),
            checkpoint=f"fixed:every_s={every_s}",
            checkpoint_to=f"disk:gb_per_s=2,background_share={share}",
            state_mb=1000.0 * write_s,  # of each of two workers, at 2 GB/s
            recovery="wait",
            restart_s=restart_s,
        ),
    )
    for n, (many, s) in enumerate(jobs):
        expected = reference(
            (many, s * S),
            [(a * S, b * S) for a, b in outages[n]],
            every_ns=every_s * S,
            write_ns=write_s * S,
            share=share,
            restart_ns=restart_s * S,
        )
        row = result.jobs.iloc[n]
        assert (row["finish_s"] * S, row["lost_s"] * S) == expected


def shrinking(work, outages, *, restart_ns, down_ns, up_ns):
    """Return when a job with a GPU on each of some servers finishes, and the work that it loses, nanoseconds.

    It goes on with the servers left, on m of n with iterations n / m times as long, and with all of them at the end
    of the iteration in which the last is back; with none left it waits for all.
    """
    iterations, whole_ns = work
    changes = [(at, what, n) for n, pairs in enumerate(outages) for pair in pairs for what, at in zip("gc", pair)]  # noqa: B905
    changes.sort(key=lambda change: (change[0], change[1]))  # those that come, c, before those that go, g
    servers = set(range(len(outages)))
    left, lost_ns, down, held, missing, grows = iterations, 0, set(), set(servers), set(), False
    begin_ns = 0

    def long_ns():
        return round(whole_ns * len(servers) / len(held))

    while True:
        end_ns = begin_ns + long_ns() if held else None
        now_ns = min(at for at in (end_ns, changes[0][0] if changes else None) if at is not None)
        ends = now_ns == end_ns
        if ends:
            left, begin_ns = left - 1, now_ns
            if left == 0:
                return now_ns, lost_ns
        was_to_grow = ends and grows
        gone = set()
        while changes and changes[0][0] == now_ns:
            _, what, server = changes.pop(0)
            if what == "c":
                down.remove(server)
                missing.discard(server)
                grows = grows or bool(held and held != servers and not missing)
            else:
                down.add(server)
                gone.add(server)
        if held and held != servers:
            missing |= gone - held
        if gone & held:
            lost_ns += max(now_ns - begin_ns, 0)
            missing |= gone & held
            held, grows = held - gone, False
            begin_ns = now_ns + down_ns + restart_ns
            if not held:
                missing = set()
        elif was_to_grow:
            grows = False
            if not missing:
                held, begin_ns = set(servers), now_ns + up_ns + restart_ns
        if not held and not down:
            held, begin_ns = set(servers), now_ns + restart_ns


@pytest.mark.long
@settings(max_examples=examples(60, by_default=10))
@given(
    work=st.tuples(st.integers(1, 15), st.sampled_from([2, 6])),
    outages=st.integers(1, 4).flatmap(outages_of_servers),
    restart_s=st.integers(0, 2),
    down_s=st.integers(0, 3),
    up_s=st.integers(0, 3),
)
def test_jobs_shrink_and_grow_as_in_the_reference(work, outages, restart_s, down_s, up_s):
    iterations, s = work
    result = ddlsched.simulate(
        ddlsched.Workload.of([data_parallel_job("a", gpus=len(outages), iterations=iterations, backward_s=s)]),
        ddlsched.Cluster(num_servers=len(outages), gpus_per_server=1, exclusive=True),
        placement="first-fit",
        order="fifo",
        disturbances=Disturbances(
            outages=tuple(Outage(server=n, from_s=a, to_s=b) for n, pairs in enumerate(outages) for a, b in pairs),
            recovery="shrink:least_share=0",
            restart_s=restart_s,
        ),
        rescale_cost=f"down_s={down_s},up_s={up_s}",
    )
    expected = shrinking(
        (iterations, s * S),
        [[(a * S, b * S) for a, b in pairs] for pairs in outages],
        restart_ns=restart_s * S,
        down_ns=down_s * S,
        up_ns=up_s * S,
    )
    row = result.jobs.iloc[0]
    assert (row["finish_s"] * S, row["lost_s"] * S) == expected
