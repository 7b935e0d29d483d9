"""What befalls clusters, and what their files say, drawn by a seed and tried at the ends of ranges: as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_numbers import answered, assert_kept, digest, short

from ddlsched import Cluster, Disturbances, Preemption, Queue, Quota, Tenants
from ddlsched.cluster.capacity import CapacityTrace, CloudInstances, Presence, capacity_of, read_lifetimes
from ddlsched.cluster.capacity_changes import CapacityChange, FailurePlaces
from ddlsched.cluster.cluster import Server, Throughputs
from ddlsched.cluster.cluster_files import (
    plain_values,
    read_cluster,
    read_tenants,
    read_throughputs,
    tenants_of,
    throughputs_of,
)
from ddlsched.cluster.disturbances import Outage, jitter_factors, jitter_remark, read_outages
from ddlsched.cluster.failure_causes import PRESETS, FailureCause, failures_per_s, read_causes
from ddlsched.cluster.idle_trace import (
    Busy,
    IdleTrace,
    expand_hosts,
    from_sacct,
    from_swf,
    idle_between,
    read_fragments,
)
from ddlsched.cluster.interference import PairwiseInterference, UniformInterference
from ddlsched.cluster.reliability_doors import CheckpointStore
from ddlsched.errors import InputError

HOUR_S = 3600.0
JOBS = [(0, 4), (int(2e12), 16), (int(5e12), 1)]
PLACES = FailurePlaces([0, 4, 8, 16, 18], ([0, 1], [2, 3]), JOBS, {"pod": (0, 1, 1, 0), "server": (0, 1, 2, 3)})
USUAL = FailureCause(cause="it", per="server", mtbf_s=9 * HOUR_S, repair_s=HOUR_S)
CAUSES: dict[str, tuple[FailureCause, ...]] = {
    "servers": (USUAL,),
    "weibull": (replace(USUAL, shape=0.7), replace(USUAL, cause="late", shape=3.0)),
    "GPUs": (replace(USUAL, per="gpu", noticed_s=600.0),),
    "unnoticed": (replace(USUAL, per="gpu", noticed_s=inf), replace(USUAL, cause="job", per="job", takes="job")),
    "racks": (replace(USUAL, per="rack", takes="rack"), replace(USUAL, cause="one", takes="rack", warned=True)),
    "pods": (
        replace(USUAL, per="pod", takes="pod", repair_s=inf, mtbf_s=1e9),
        replace(USUAL, cause="one", mtbf_s=HOUR_S),
    ),
    "large jobs": (replace(USUAL, per="job", takes="job", least_gpus=4, mtbf_s=HOUR_S),),
    "lemons": (replace(USUAL, lemon_share=0.5, lemon_times=8.0), replace(USUAL, cause="b", per="gpu", lemon_share=0.4)),
    "lemons that hang": (replace(USUAL, lemon_share=0.5, lemon_times=8.0, noticed_s=300.0),),
    "slow": (replace(USUAL, per="gpu", slowdown=2.5, noticed_s=1800.0), replace(USUAL, cause="down", mtbf_s=HOUR_S)),
    "slow servers": (replace(USUAL, slowdown=1.5, noticed_s=inf),),
}


def told(changes: Iterator[Any], number: int = 150) -> str:
    """Rows to the microsecond, as logarithms of other machines may differ in their last bits."""
    rows = [tuple(change) for change in islice(changes, number)]
    near = [
        (round(time_ns / 1000), *(round(x / 1000) if isinstance(x, int) and x > 10**6 else x for x in rest))
        for time_ns, *rest in rows
    ]
    return f"{len(rows)} {near[-1][0] if near else ''} {digest(near)}"


def test_failures_are_what_they_were() -> None:
    found = {}
    for name, causes in CAUSES.items():
        for health, replaced in ((None, ()), ("repeated-failures:count=2,check_s=4000", (0, 2, 3))):
            slows = any(cause.slows for cause in causes)
            given = Disturbances(failures=causes, health=health, checkpoint=None if slows else "fixed:every_s=60")
            changes = given.capacity_changes(PLACES, np.random.default_rng(4), replaced)
            found[f"{name} {health is not None}"] = told(changes)
        rates = [failures_per_s(causes, gpus, servers) for gpus, servers in ((1, 1), (4, 2), (3, 1), (20, 4))]
        numbers = [number for cause in causes for number in (cause.scale_s, cause.noticed_ns or -1, cause.hangs)]
        found[f"{name} rates"] = short(*rates, *numbers)
    for name in PRESETS:
        causes = read_causes(name)
        found[name] = f"{short(failures_per_s(causes, 1024, 128))} {digest(causes)}"
        found[f"{name} drawn"] = told(
            Disturbances(failures=name).capacity_changes(PLACES, np.random.default_rng(2)), 40
        )
    given = Disturbances(server_mtbf_s=500.0, server_repair_s=50.0)
    found["mtbf"] = told(given.capacity_changes(PLACES, np.random.default_rng(4)))
    assert_kept("failures", found)


def test_what_runs_draw_at_their_beginning_is_what_it_was() -> None:
    found = {}
    for share, slowdown in ((0.0, 2.0), (0.3, 2.0), (0.3, 1.0), (1.0, 7.5)):
        given = Disturbances(straggler_share=share, straggler_slowdown=slowdown)
        found[f"slow {share} {slowdown}"] = (
            f"{digest(given.slowdowns(40, np.random.default_rng(1)).tolist())} {given.draws}"
        )
    iterations, most = np.array([1, 3, 10, 200, 10**6]), np.array([1, 100, 19, 10**9, 10**7])
    for error in (0.0, 0.3, 3.0):
        given = Disturbances(prediction_error=error)
        found[f"error {error}"] = str(given.misjudged_iterations(iterations, most, np.random.default_rng(5)).tolist())
    for cv in (0.05, 1.0, 1.01, 4.0):
        factors = jitter_factors(cv)
        some = factors[:: len(factors) // 6]
        found[f"jitter {cv}"] = f"{len(factors)} {' '.join(f'{factor:.6g}' for factor in some)} {jitter_remark(cv)}"
    for more in ({}, {"restart_s": 1.5}, {"restart_gpu_s": 0.25}, {"restart_iterations": 2.5}, {"state_mb": 3.0},
        {"state_mb": 0.0},
                 {"state_share": 0.25}, {"state_share": 0.0}, {"jitter_cv": 0.1}, {"server_mtbf_s": 9.0}):  # fmt: skip
        given = Disturbances(**more)  # type: ignore[arg-type]
        numbers = given.restart_ns(6, 1_000_001), given.state_bytes(1_000_003), given.moves_state
        found[f"costs {more}"] = f"{numbers} {given.draws} {given.servers_fail} {len(given.causes)}"
    assert_kept("beginnings", found)


TRACE = CapacityTrace((
    Presence(server=0, leave_s=5.0), Presence(server=0, join_s=5.0, leave_s=9.0, warned=True), Presence(server=1,
        join_s=2.0),
    Presence(server=3, join_s=1.0, leave_s=2.0), Presence(server=3, join_s=2.5, leave_s=7.0),
))  # fmt: skip


def test_capacity_is_what_it_was() -> None:
    found = {"table": str([tuple(map(int, change[:4])) for change in TRACE.changes(5)])}
    for text in (
        "mean_life_s=900,until_s=7200,seed=1", "mean_life_s=400,mean_wait_s=300,until_s=3600,warned=true",
        "mean_life_s=9e5",
        "mean_life_s=60,mean_wait_s=0.001,until_s=600,seed=9",
    ):  # fmt: skip
        found[text] = told(capacity_of(f"instances:{text}", 6).changes(6))
    lives = CloudInstances(lifetimes=(60.0, 70.0, 500.0), mean_wait_s=10.0, until_s=2000.0, seed=2).trace(3)
    found["lifetimes"] = f"{len(lives.presences)} {told(lives.changes(3))}"
    assert_kept("capacities", found)


def idle(rng: np.random.Generator) -> IdleTrace:
    busy = []
    for _ in range(40):
        begin_s, length_s = float(rng.integers(200)), float(rng.choice([1, 3, 20, 40]))
        busy.append(Busy(int(rng.integers(6)), begin_s, begin_s + length_s))
    return idle_between(busy, 7, at_least_s=float(rng.choice([0.0, 3.0])))


def rows(trace: IdleTrace) -> str:
    return f"{len(trace)} {short(trace.lengths_s.sum())} {digest(trace.frame().itertuples())}"


def test_idle_nodes_are_what_they_were(tmp_path: Path) -> None:
    found = {}
    for seed in range(3):
        trace = idle(np.random.default_rng(seed))
        parts = (trace, trace.of_nodes(1, 4), trace.between(20.0, 90.0), trace.since(50.0))
        found[f"{seed}"] = " ".join(map(rows, parts))
        means = trace.mean_idle(10.0, 30.0), trace.mean_idle(0.0, 100.0)
        found[f"{seed} changes"] = f"{short(*means)} {digest(trace.changes())} {digest([trace.capacity()])}"
    swf = tmp_path / "a.swf"

    def of_swf(nodes: int, per_node: int, least: float) -> str:
        return rows(from_swf(swf, nodes, processors_per_node=per_node, at_least_s=least))

    columns = [
        (1, 0, 5, 60, 3, 3, 1), (2, 10, -1, 30, -1, 4, 1), (3, 20, 0, -1, 2, 2, 1), (4, 20, 1, 40, 0, 5, 0), (5, 30, 0,
            0, 2, 2, 1),
        (6, 70, 2, 50, 1, 1, 2), (7, 71, 2, 50, 1, 1, 3), (8, 72, 2, 50, 1, 1, 4), (9, 66, 0, 10, 2, 9, 5),
    ]  # fmt: skip
    lines = [
        f"{n} {at} {wait} {run} {given} 0 0 {asked} 0 0 {state}" + " 0" * 7
        for n, at, wait, run, given, asked, state in columns
    ]
    swf.write_text("; a head\n\n" + "\n".join(lines) + "\n")
    for per_node, nodes, least in ((1, 12, 0.0), (2, 5, 10.0), (4, 3, 0.0), (1, 4, 0.0)):
        made = answered(of_swf, nodes, per_node, least)
        found[f"swf {per_node} {nodes} {least}"] = made.replace(str(tmp_path), "")
    sacct, head = tmp_path / "sacct", "JobID|Start|End|State|NodeList"
    cells = (
        ("1", "2026-01-01T00:00:00", "2026-01-01T01:00:00", "n[1-2]"), ("2", "2026-01-01T00:30:00", "Unknown",
            "n[02,3]x"),
        ("3", "Unknown", "Unknown", "n1"), ("4", "None", "Unknown", "n1"), ("5", "2026-01-01T02:00:00",
            "2026-01-01T02:00:00", "n4"),
        ("6", "2026-01-01T01:00:01", "2026-01-01T03:00:00", "n1"), ("7", "2026-01-01T01:30:00", "2026-01-01T02:00:00",
            "None assigned"),
    )  # fmt: skip
    sacct.write_text("\n".join([head, *(f"{job}|{start}|{end}|X|{nodes}" for job, start, end, nodes in cells)]))
    for least in (0.0, 1.0, 3600.0):
        trace, names = from_sacct(sacct, at_least_s=least)
        found[f"sacct {least}"] = f"{names} {rows(trace)}"
    for text in (
        "a",
        "a,b",
        "n[1-3]",
        "n[01-3,7]",
        "n[9-11]",
        "n[1][2-3]x,y",
        "n[3-1]",
        "n[1",
        "n]",
        "a,",
        ",a",
        "a,,b",
        "n[a]",
        "n[1-2000002]",
    ):
        found[f"hosts {text}"] = digest([answered(expand_hosts, text)])
    assert_kept("idle-nodes", found)


KINDS = Throughputs(values=(("a", "x", 2.0), ("a", "y", 3.0), ("b", "x", 5.0)), reference_kind="x")
SERVERS = (
    Server(gpus=4, gpu_kind="x", nic_gbps=25.0, levels=(("rack", "r1"), ("pod", "p"))),
    Server(gpus=6, gpu_kind="x", gpu_memory_mb=1000.5, relative_speed=0.5, levels=(("rack", "r0"), ("pod", "p"))),
    Server(gpus=1, gpu_kind="y", levels=(("rack", "r1"), ("pod", "q"))),
)
SEEN = (
    "num_servers", "num_gpus", "gpus_per_server", "gpu_memory_mb", "common_multiple", "levels", "network_cards",
    "kinds",
    "models_on_all_kinds", "gpus_of_servers",
)  # fmt: skip
ARRAYS = ("first_gpus", "server_of_gpu", "gpu_memory_bytes", "relative_speed", "kind_of_gpu")


def test_clusters_show_what_they_showed() -> None:
    found = {}
    for name, cluster in {
        "default": Cluster(), "small": Cluster(num_servers=3, gpus_per_server=5, gpu_memory_mb=0.5, exclusive=True),
        "listed": Cluster(servers=SERVERS), "kinds": Cluster(servers=SERVERS, throughputs=KINDS),
        "one kind": Cluster(servers=SERVERS[:2], throughputs=replace(KINDS, reference_kind=None)),
    }.items():  # fmt: skip
        seen = [getattr(cluster, attribute) for attribute in SEEN]
        found[name] = f"{seen} {digest(getattr(cluster, attribute).tolist() for attribute in ARRAYS)}"
        jobs = [("row 1", "j", model) for model in ("a", "b", None)]
        for job in jobs:
            found[f"{name} {job[2]}"] = digest([answered(cluster.refuse_without_throughput, [job])])
    speeds = (answered(KINDS.speed, model, kind, "row 2") for model in ("a", "b", None) for kind in "xyz")
    found["speeds"] = f"{KINDS.models} {KINDS.kinds} {digest(speeds)}"
    tenants = Tenants(
        queues=(Queue(name="all"), Queue(name="a", parent="all", weight=2.0), Queue(name="b", parent="a"))
    )
    paths = [[queue.name for queue in tenants.path(name)] for name in ("all", "b")]
    found["tenants"] = f"{tenants.leaves} {tenants.kinds} {paths} {plain_values(tenants)}"
    for queue in ("b", "a", "bb", None):
        found[f"queue {queue}"] = answered(tenants.refuse_others, "row 3", "j", queue)
    units = (answered(PLACES.units, level) for level in ("server", "rack", "pod", "zone"))
    found["units"] = digest(units)
    assert_kept("clusters", found)


Tried = dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, tuple[Any, ...]]]]
QUEUE = {"name": "q", "quotas": {"any": Quota(gpus=1)}}
TRIED: Tried = {
    "outage": (Outage, {"server": 1, "from_s": 2.0}, {
        "server": (-1, 0, 1.0, True), "from_s": (-1e-9, 0.0, 1e9, 1e9 + 1), "to_s": (2.0, 2.0 + 1e-10, 2.0 + 1e-9, 1e9,
            1e10),
    }),
    "presence": (Presence, {"server": 1}, {"server": (-1, 0), "join_s": (-1.0, 1e9, 2e9), "leave_s": (0.0, 1e-9, 1e9)}),
    "trace": (CapacityTrace.of, {"presences": [(0, 0.0, 5.0)]}, {"presences": (
        (), ((0, 0.0, 5.0), (0, 5.0, 6.0)), ((0, 0.0, 5.0), (0, 4.0, 6.0)), ((0, 0.0, 5.0), (1, 4.0, 6.0)),
    )}),
    "instances": (CloudInstances, {"mean_life_s": 9.0}, {
        "mean_life_s": (None, 0.0, 1e-3, 1e9), "lifetimes": ((1.0,),), "mean_wait_s": (0.0, 1e-3), "until_s": (0.0,
            1e-3),
        "seed": (-1, 0),
    }),
    "lifetimes": (CloudInstances, {"lifetimes": (3.0,)}, {"lifetimes": ((), (1e-3,), (9e-4,), (1e9,), (1.1e9,))}),
    "many instances": (lambda n: len(CloudInstances(mean_life_s=1.0, until_s=1e9, mean_wait_s=1.0).trace(n).presences),
        {"n": 1}, {}),
    "disturbances": (Disturbances, {}, {
        "jitter_cv": (-0.1, 10.0, 10.1), "straggler_share": (-0.1, 1.0, 1.1), "straggler_slowdown": (0.9, 1.0, 1e6,
            2e6),
        "server_mtbf_s": (0.0, 1e-3, 1e9, 2e9), "server_repair_s": (0.0, 1e-3), "checkpoint_iterations": (0, 1, 2),
        "restart_s": (-1.0, 1e9, 2e9), "restart_gpu_s": (-1.0,), "restart_iterations": (-1.0, 1000.0, 1001.0),
        "state_mb": (-1.0, 0.0), "state_share": (-0.1, 1.0, 1.1), "prediction_error": (-0.1, 10.0, 11.0), "outages": (
            (Outage(server=0, from_s=0.0, to_s=3.0), Outage(server=0, from_s=3.0)), 5, (5,),
            (Outage(server=0, from_s=0.0, to_s=3.0), Outage(server=0, from_s=2.0)),
        ), "failures": (5, (5,), "nobody"), "checkpoint": ("young", "none"), "checkpoint_to": ("peer", "disk"),
        "recovery": ("wait", "none"), "health": ("repeated-failures:count=2", "repeated-failures:check_s=9"),
    }),
    "failing": (Disturbances, {"server_mtbf_s": 9.0}, {
        "outages": ((Outage(server=0, from_s=0.0),),), "failures": ((USUAL,),), "state_mb": (1.0,),
    }),
    "saving": (Disturbances, {"checkpoint": "young"}, {
        "checkpoint_iterations": (1, 2), "checkpoint_to": ("peer", "storage:servers=2", "tape"),
        "health": ("repeated-failures:check_s=9",),
    }),
    "state": (Disturbances, {"state_mb": 3.0}, {"state_share": (1.0, 0.5)}),
    "cause": (FailureCause, {"cause": "c", "per": "server"}, {
        "cause": ("", " ", 5), "per": ("gpu", "rack", "job", "pod", ""), "takes": ("job", "rack", "pod", "gpu"),
        "mtbf_s": (0.0, 1e-3, 1e18), "noticed_s": (-1.0, 0.0, 5.0, inf), "repair_s": (0.0, 1e-3, inf),
        "slowdown": (0.9, 2.0),
        "shape": (0.09, 0.1, 20.0, 21.0), "warned": (True,), "least_gpus": (0, 1, 2), "lemon_share": (-0.1, 0.5, 1.0,
            1.1),
        "lemon_times": (0.9, 2.0),
    }),
    "cause of jobs": (FailureCause, {"cause": "c", "per": "job", "takes": "job"}, {
        "takes": ("server", "rack", "pod"), "noticed_s": (5.0, inf), "repair_s": (5.0, inf), "warned": (True,),
        "slowdown": (2.0,), "least_gpus": (2,), "lemon_share": (0.5,),
    }),
    "slow cause": (FailureCause, {"cause": "c", "per": "gpu", "slowdown": 2.0, "noticed_s": 9.0}, {
        "per": ("server", "rack", "job"), "takes": ("job", "rack"), "noticed_s": (0.0, inf), "warned": (True,),
        "lemon_share": (0.5,),
    }),
    "warned cause": (FailureCause, {"cause": "c", "per": "server", "warned": True}, {
        "noticed_s": (0.0, 1.0), "takes": ("job", "rack"), "per": ("rack", "gpu"),
    }),
    "rack cause": (FailureCause, {"cause": "c", "per": "rack", "takes": "rack"}, {
        "takes": ("server", "job", "pod"), "lemon_share": (0.0, 0.5), "noticed_s": (5.0,), "per": ("gpu", "pod", "job"),
    }),
    "store": (CheckpointStore.of, {"given": "disk"}, {"given": (
        CheckpointStore(to="peer"), "disk:gb_per_s=0", "disk:gb_per_s=0.1", "peer", "storage:servers=0",
        "storage:servers=1", "tape", "disk:x=1",
        "peer:background_share=1", "peer:background_share=1.1", "peer:background_share=-0.1",
    )}),
    "sends": (lambda given: CheckpointStore.of(given).sends, {"given": "disk"}, {"given": ("peer", "storage")}),
    "uniform": (UniformInterference, {}, {"share": (-0.1, 0.0, 1000.0, 1000.1), "once": (True,)}),
    "server": (Server, {}, {
        "gpus": (0, 1, 10**7, 10**7 + 1), "gpu_memory_mb": (0.0, 0.1), "relative_speed": (1e-7, 1e-6, 1e6, 2e6),
        "nic_gbps": (0.0, 0.1), "levels": ((("rack", "a"),),),
    }),
    "cluster": (Cluster, {}, {
        "num_servers": (0, 1), "gpus_per_server": (0, 1, 10**7), "gpu_memory_mb": (0.0, 0.1), "servers": (
            SERVERS, (5,), (SERVERS[0], Server()), (Server(gpus=10**7), Server(gpus=1)), (Server(gpus=10**7),),
        ), "throughputs": (KINDS,),
    }),
    "throughputs": (Throughputs, {"values": (("a", "x", 2.0), ("a", "y", 1.0))}, {
        "values": ((("a", "x", 1e-9),), (("a", "x", 9e-10),), (("a", "x", 1e9),), (("a", "x", 1.1e9),), (("a", "x",
            1.0),) * 2),
        "reference_kind": ("x", "z"),
    }),
    "given throughputs": (throughputs_of, {"given": KINDS, "reference_kind": "x"}, {
        "given": (None,), "reference_kind": (None, "y"),
    }),
    "quota": (Quota, {}, {"gpus": (-1, 0), "borrowing_limit": (-1, 0), "lending_limit": (-1, 0)}),
    "preemption": (Preemption, {}, {
        "within_queue": ("lower-priority", "lower-or-newer", "any"), "reclaim": ("any", "some"),
        "borrow": ("lower-priority", "any"), "borrow_max_priority": (-(2**31), -(2**31) - 1),
    }),
    "queue": (Queue, QUEUE, {
        "weight": (-1.0, 0.0), "order": ("strict", "fifo"), "quotas": ({}, {"any": Quota(), "x": Quota()},
            {"x": Quota()}),
    }),
    "tenants": (Tenants, {"queues": (Queue(**QUEUE),)}, {"queues": (
        (), (Queue(name="a"), Queue(name="a")), (Queue(name="a", parent="b"),), (Queue(name="a", parent="a"),),
        (Queue(name="a", parent="b"), Queue(name="b", parent="a")),
        (Queue(**QUEUE), Queue(name="x", quotas={"x": Quota()})), (Queue(name="x", quotas={"x": Quota(),
            "y": Quota()}),),
    )}),
    "given tenants": (tenants_of, {"given": None}, {"given": (5, Tenants(queues=(Queue(name="a"),)))}),
    "overlap of nodes": (lambda starts, ends: len(IdleTrace(np.array([0, 0, 1]), np.array(starts), np.array(ends))), {
        "starts": [0.0, 5.0, 0.0], "ends": [5.0, 6.0, 9.0],
    }, {"starts": ([0.0, 4.0, 0.0], [0.0, 6.0, 0.0], [0.0, 5.0, 9.0]), "ends": ([0.0, 6.0, 9.0], [5.5, 6.0, 9.0])}),
}  # fmt: skip
"""By what is made: how, with what, and what of it is tried otherwise, one at a time."""
OF_FILES: dict[str, tuple[Callable[[Path], Any], str, tuple[str, ...]]] = {
    "outages.csv": (read_outages, "server,from_s,to_s\n", ("", "1,2,3\n1,3,\n", "1,2,3\n1,2.5,\n", "-1,0,1\n",
        "0,-1,1\n", "0,1,1\n")),
    "capacity.csv": (CapacityTrace.read, "server,join_s,leave_s,warned\n", (
        "", "0,0,,\n1,2,3,1\n", "0,0,2,0\n0,1,3,0\n", "0,0,,2\n", "-1,0,,0\n", "0,2,1,0\n", "0,-1,1,0\n",
        "0,0,1,1\n0,1,2,1\n",
    )),
    "lives.csv": (read_lifetimes, "lifetime_s\n", ("", "3\n0.5\n", "-1\n", "x\n")),
    "causes.csv": (read_causes, "cause,per,per_1000_days,takes,noticed_s,repair_s,warned,least_gpus,shape\n", (
        "", "a,server,5,,,,,,\n", "a,gpu,2,,60,never,,,2\n", "a,job,2,,never,,,4,\n", "a,server,0,,,,,,\n",
        "a,server,-1,,,,,,\n",
        "a,rack,1,server,,,1,,\n", "a,server,1,,,,2,,\n", "a,server,1,,,,0,0,\n", "a,server,1,,,,,,\na,gpu,1,,,,,,\n",
        "a,server,1,,5,,1,,\n",
    )),
    "servers.csv": (read_cluster, "gpus,gpu_memory_mb,servers,relative_speed,nic_gbps,gpu_kind,exclusive,level rack\n",
        (
        "", "4,1000,2,,,,,a\n8,500,,0.5,25,k,,b\n", "4,1000,,,,,1,a\n4,1000,,,,,0,a\n",
        "4,1000,,,,,1,a\n4,1,,,,,1,a\n", "4,,,,,,,a\n",
        "0,1,,,,,,a\n", "1,1,0,,,,,a\n", "1,1,,,,,2,a\n", "1,1,,,,,,\n", "1,1,10000000,,,,,a\n1,1,,,,,,a\n",
        "1,0,,,,,,a\n",
    )),
    "throughputs.csv": (read_throughputs, "model,x,y\n", ("", "a,1,\nb,2,3.5\n", "a,0,1\n", "a,-1,1\n", "a,inf,1\n",
        "a,1,1\na,1,2\n")),
    "throughputs.json": (read_throughputs, "", ("{}", '{"a": {"x": 2, "y": 0.5}}', '{"a": {"x": 0}}',
        '{"a": {"x": true}}', '{"a": 3}', "[]")),
    "queues.yaml": (read_tenants, "queues:\n", (
        "", "- {name: a, gpus: 3}\n", "- {name: a, gpus: 3, quotas: {any: {gpus: 2}}}\n",
        "- {name: a, quotas: {x: {gpus: 2, lending_limit: 1}}}\n",
        "- {name: ' '}\n", "- {nme: a}\n", "- {name: a, gpus: -1}\n",
        "- {name: a, preemption: {reclaim: any, x: 1}}\n", "- 5\n", "- {name: 5}\n",
        "- {name: a, preemption: {reclaim: any}, weight: 2, order: strict}\nx: 1\n",
        "- {name: a, parent: b}\n- {name: b}\n", "{}\n", "5\n",
    )),
    "idle.csv": (read_fragments, "node,idle_from_s,idle_to_s\n", ("", "0,1,2\n0,2,3\n", "0,1,1\n", "0,1,3\n0,2,4\n",
        "-1,1,2\n", "0,-1,2\n", "0.5,1,2\n")),
    "pairs.csv": (lambda path: PairwiseInterference(file=str(path)), "model,other,penalty_share\n", (
        "", "a,b,0.5\nb,a,0\n", "a,b,1\na,b,1\n", "a,,1\n", "a,b,1000\n", "a,b,1000.5\n", "a,b,-1\n",
    )),
}  # fmt: skip


@pytest.mark.long
def test_what_is_made_and_what_is_refused_is_what_it_was(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for what, (make, usual, others) in TRIED.items():
        given = [
            ("", {}),
            *(
                (f"{name} {place}", {name: value})
                for name, values in others.items()
                for place, value in enumerate(values)
            ),
        ]
        for text, more in given:
            found[f"{what} {text}".strip()] = digest([answered(make, **usual | more)])
    for name, (read, head, bodies) in OF_FILES.items():
        for number, body in enumerate(bodies):
            (path := tmp_path / name).write_text(head + body)
            answer = answered(read, path).replace(str(tmp_path), "")
            found[f"{name} {number}"] = digest([answer])
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("model,other,penalty_share\na,b,0.5\n")

    def share(otherwise: float | None, *models: str | None) -> float:
        return PairwiseInterference(file=str(pairs), otherwise_share=otherwise).penalty_share(*models)

    for otherwise in (None, 0.25, 1001.0):
        asked = (answered(share, otherwise, *pair) for pair in (("a", "b"), ("b", "a"), (None, "b")))
        found[f"pairs {otherwise}"] = digest(answer.replace(str(tmp_path), "") for answer in asked)
    assert_kept("made-of-clusters", found)


def test_an_outage_of_a_server_that_is_not_there_is_refused() -> None:
    outages = [(Outage(server=server, from_s=1.0, to_s=2.0),) for server in (3, 4)]
    there, beyond = (Disturbances(outages=each) for each in outages)
    changes = there.capacity_changes(PLACES, np.random.default_rng(0))
    assert list(changes) == [CapacityChange(10**9, True, 3), CapacityChange(2 * 10**9, False, 3)]
    with pytest.raises(InputError, match="outage of server 4: the cluster's servers are 0 to 3"):
        beyond.capacity_changes(PLACES, np.random.default_rng(0))
