"""Nodes that fail on purpose: as in a simulated run of the same seed, with the same recovery and checkpoint classes."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import pytest
from command_line import refused, run
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched.cluster.capacity_changes import Strike
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.cluster.reliability_doors import CheckpointedJob
from ddlsched.errors import InputError
from ddlsched.real import live_command
from ddlsched.real.live import failing as failing_module
from ddlsched.real.live import seat
from ddlsched.real.live.commits import committed_steps
from ddlsched.real.live.failing import FailingNodes
from ddlsched.real.live.seat import CommitTimes, Orders
from ddlsched.real.live_command import LiveOptions

NODE = FailureCause(cause="node", per="server", mtbf_s=100.0, repair_s=20.0)


def on(*nodes: int, process: int = 0) -> SimpleNamespace:
    names = tuple(f"node{node}" for node in nodes)
    return SimpleNamespace(
        nodes=names, workers=dict.fromkeys(names, SimpleNamespace(process=SimpleNamespace(pid=process)))
    )


@pytest.mark.long
def test_nodes_leave_and_come_when_simulated_servers_do() -> None:
    disturbances = Disturbances(failures=(NODE,))
    job = data_parallel_job("a", gpus=2, iterations=1000, backward_s=1.0)
    simulated = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        ddlsched.Cluster(num_servers=4, gpus_per_server=1),
        disturbances=disturbances,
        until_s=600.0,
        seed=3,
    )
    failing = FailingNodes(4, {"a": 2}, disturbances, seed=3, speed=10.0)
    outages = sorted(simulated.finished.outages, key=lambda outage: outage[1])
    assert len(outages) > 10
    for server, from_ns, to_ns in outages:
        if to_ns < 600e9:
            middle_s = (from_ns + to_ns) / 2e9
            down = {n for n, begins_ns, ends_ns in outages if begins_ns / 1e9 <= middle_s < ends_ns / 1e9}
            assert server in down
            at_that_time = FailingNodes(4, {"a": 2}, disturbances, seed=3, speed=10.0).idle(middle_s / 10)
            assert at_that_time == {f"node{n}" for n in range(4) if n not in down}
    failing.idle(60.0)
    assert len(failing.failures) == len(outages)


def test_a_spare_joins_when_a_node_of_a_job_fails() -> None:
    """And the node that is repaired is the next spare."""
    outage = Outage(server=0, from_s=5, to_s=8)
    failing = FailingNodes(3, {"a": 2}, Disturbances(outages=(outage,), recovery="spares:count=1"), speed=2.0)
    failing.running = {"a": on(0, 1)}
    assert failing.idle(2.4) == {"node0", "node1"}
    assert failing.idle(2.5) == {"node1", "node2"}
    assert failing.idle(4.1) == {"node1", "node2"}
    assert failing.order("a", {"node1", "node2"}) == ["node2", "node1"]


def test_a_job_waits_for_its_node() -> None:
    outage = Outage(server=1, from_s=5, to_s=8)
    failing = FailingNodes(3, {"a": 1}, Disturbances(outages=(outage,), recovery="wait"))
    failing.running = {"a": on(1)}
    assert (failing.idle(5.0), failing.awaited("a")) == ({"node0", "node2"}, 1)
    assert (failing.idle(8.0), failing.awaited("a")) == ({"node0", "node1", "node2"}, 0)


def test_what_strikes_a_job_ends_its_process_or_stops_it_until_that_is_noticed(monkeypatch) -> None:
    """At half speed two seconds of a simulated hang are four of this machine."""
    sent = list[tuple[int, int]]()
    monkeypatch.setattr(failing_module.os, "kill", lambda process, number: sent.append((process, number)))
    failing = FailingNodes(3, {"a": 1, "b": 1, "c": 1}, Disturbances(), speed=0.5)
    failing.running = {name: on(node, process=100 + node) for node, name in enumerate("abc")}
    failing._strike(Strike(0, "hangs", range(1, 2), -1, 2_000_000_000), 10.0)
    assert sent == [(101, signal.SIGSTOP)]
    failing._strike(Strike(0, "ends", range(0), 2, 0), 11.0)
    failing._strike(Strike(0, "unseen", range(3), -1, None), 12.0)
    assert sent == [(101, signal.SIGSTOP), (102, signal.SIGKILL)]
    assert failing.failures == [(10.0, "hangs", "b"), (11.0, "ends", "c")]
    failing.idle(13.9)
    assert len(sent) == 2
    failing.idle(14.0)
    assert len(sent) == 3
    failing.idle(20.0)
    assert sent[2:] == [(101, signal.SIGKILL)]


def test_speed_and_options_are_checked(tmp_path) -> None:
    with pytest.raises(InputError, match="speed is 0"):
        FailingNodes(1, {}, Disturbances(), speed=0)
    (tmp_path / "jobs.csv").write_text("job_id,program,steps,max_nodes\na,count,1,1\n")
    asked = ["live", tmp_path / "jobs.csv", "--state", tmp_path / "state"]
    refused(run(*asked), "expected one of --trace FILE, --slurm PARTITION, --nodes N")
    refused(run(*asked, "--slurm", "idle", "--failures", "rsc-1"), "expected --nodes N as well")
    refused(run(*asked, "--nodes", "0"), "nodes is 0")
    assert live_command._failing(LiveOptions(nodes=1), ()).idle(0.0) == {"node0"}


def test_a_run_on_a_trace_ends_with_the_trace(tmp_path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,program,steps,max_nodes,min_nodes\na,count,1,2,2\n")
    (tmp_path / "idle.csv").write_text("node,idle_from_s,idle_to_s\n0,0,1\n")
    asked = ["live", tmp_path / "jobs.csv", "--state", tmp_path / "state", "--trace", tmp_path / "idle.csv"]
    begun = time.monotonic()
    done = run(*asked, "--speed", 100, "--until-s", 20)
    assert (done.exit_code, "0 finished, 0 failed, 1 queued" in done.stderr) == (0, True)
    assert time.monotonic() - begun < 10


def test_the_policy_says_when_to_commit(monkeypatch) -> None:
    """Young, at 2 s a commit and 100 s to failure: 20 s; before the first commit, after the first step."""
    clock = SimpleNamespace(now_s=1000.0)
    monkeypatch.setattr(seat, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    times = CommitTimes("a")
    times.begin(Orders(1, 0, 2, "", 0, "young", 100.0))
    clock.now_s += 0.1
    assert times.is_due()
    with times.timed():
        clock.now_s += 2.0
    clock.now_s += 19.9
    assert not times.is_due()
    clock.now_s += 0.2
    assert times.is_due()
    assert ddlsched.plugins.names.resolve("checkpoint", "young").interval_s(
        CheckpointedJob(job_id="a", num_gpus=2, write_s=2.0, restart_s=0.0, time_to_failure_s=100.0, now_s=0.0)
    ) == pytest.approx(20.0)
    later = CommitTimes("a")
    later.begin(Orders(2, 0, 2, "", 0, "young", 100.0, 2.0))  # another process, which the manager tells
    clock.now_s += 19.9
    assert not later.is_due()


@pytest.mark.slow
def test_a_job_on_failing_nodes_trains_to_its_end(tmp_path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,program,steps,max_nodes,min_nodes\na,count,600,2,2\n")
    (tmp_path / "causes.csv").write_text("cause,per,per_1000_days,takes,repair_s\nnode,server,14400000,server,1\n")
    options = ["--failures", tmp_path / "causes.csv", "--checkpoint", "fixed:every_s=0.5", "--recovery", "wait"]
    begun_s = time.monotonic()
    live = run("live", tmp_path / "jobs.csv", "--state", tmp_path / "state", "--nodes", 3, "--speed", 0.2, *options)
    assert live.exit_code == 0, live.stderr
    assert len(committed_steps(tmp_path / "state" / "a")) == 600
    timeline = (tmp_path / "state" / "timeline.csv").read_text()
    if time.monotonic() - begun_s > 30:
        assert "lost a node" in timeline
    sizes = {line.split(",")[4] for line in timeline.splitlines() if ",step,a," in line}
    assert sizes == {"2"}
