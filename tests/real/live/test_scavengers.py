from __future__ import annotations

from concurrent.futures import wait
from threading import Event

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlsched.cluster import idle_trace
from ddlsched.cluster.idle_trace import (
    Busy,
    IdleChange,
    IdleTrace,
    expand_hosts,
    from_sacct,
    from_swf,
    idle_between,
    read_fragments,
)
from ddlsched.errors import InputError, SimulationError
from ddlsched.real.live.nodes import SeldomAsked, SlurmScavenger, TraceScavenger, idle_of_sinfo
from ddlsched.real.slurm.commands import SlurmBusyError


def trace(*fragments) -> IdleTrace:
    nodes, starts, ends = np.array(fragments, float).reshape(-1, 3).T
    return IdleTrace(nodes.astype(int), starts, ends)


SINFO = "nid0001|idle\nnid0002|allocated\nnid0003|idle*\nnid0004|idle~\nnid0005|mixed\nnid0006|planned\nnid0007|idle\n"
SQUEUE = "812|nid[0010-0012]\n813|nid0020\n"
SACCT = """JobID|Start|End|State|NodeList
100|2026-01-31T12:00:00|2026-01-31T12:10:00|COMPLETED|nid[0001-0002]
101|2026-01-31T12:15:00|2026-01-31T12:40:00|CANCELLED by 0|nid0001
102|2026-01-31T12:05:00|Unknown|RUNNING|nid0003
103|Unknown|Unknown|PENDING|None assigned
"""
SWF_LINE = "{job} {submit} {wait} {run} {procs} -1 -1 {procs} -1 -1 1 1 1 -1 -1 -1 -1 -1\n"


def test_the_changes_of_the_idle_set_are_in_order_and_leave_out_what_comes_back_at_once() -> None:
    changes = list(trace((0, 0, 10), (0, 10, 20), (1, 5, 10), (2, 10, 12)).changes())
    assert changes == [
        IdleChange(0, (0,), ()),
        IdleChange(5, (1,), ()),
        IdleChange(10, (2,), (1,)),
        IdleChange(12, (), (2,)),
        IdleChange(20, (), (0,)),
    ]


def test_a_trace_is_cut_and_moved() -> None:
    cut = trace((0, 0, 10), (5, 5, 30), (6, 40, 50)).of_nodes(0, 6).since(8)
    np.testing.assert_array_equal(cut.frame(), [[0, 0, 2], [5, 0, 22]])
    assert trace((0, 0, 10), (5, 5, 30)).mean_idle(0, 20) == pytest.approx(25 / 20)


def test_a_trace_becomes_servers_that_come_and_go() -> None:
    changes = list(trace((1, 3, 7)).capacity().changes(2))
    assert [(change.time_ns, change.fails, change.server) for change in changes] == [
        (0, True, 0), (0, True, 1), (3_000_000_000, False, 1), (7_000_000_000, True, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("suffix", "write"), [(".csv", "to_csv"), (".parquet", "to_parquet")])
def test_tables_of_fragments_are_read(tmp_path, suffix, write) -> None:
    frame = trace((3, 0.5, 10), (0, 5, 30)).frame()
    getattr(frame, write)(tmp_path / f"idle{suffix}", index=False)
    np.testing.assert_array_equal(read_fragments(tmp_path / f"idle{suffix}").frame(), frame)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node,idle_from_s,idle_to_s\n1,5,5\n", "node 1 is idle from 5 to 5 s"),
        ("node,idle_from_s,idle_to_s\n1,0,5\n1,4,9\n", "begins after that node's last ended, at 5 s"),
        ("node,idle_from_s,idle_to_s\n1.5,0,5\n", "row 1 .line 2., column node: '1.5'"),
        ("node,idle_from_s,idle_to_s\n1,-3,5\n", "column idle_from_s: '-3'"),
        ("node,from,to\n1,3,5\n", "column 'idle_from_s' is missing"),
        ("node,idle_from_s,idle_to_s\n", "holds no fragment"),
    ],
)
def test_faults_in_tables_of_fragments_are_named(tmp_path, text, said) -> None:
    (tmp_path / "idle.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_fragments(tmp_path / "idle.csv")


def test_a_file_that_is_no_parquet_is_refused(tmp_path) -> None:
    (tmp_path / "idle.parquet").write_text("node")
    with pytest.raises(InputError, match="is no Parquet file"):
        read_fragments(tmp_path / "idle.parquet")


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(1, 9)), min_size=1))
def test_a_node_is_idle_exactly_when_no_job_holds_it(jobs) -> None:
    busy = [Busy(node, start, start + run) for node, start, run in jobs]
    first, last = min(b.from_s for b in busy), max(b.to_s for b in busy)
    is_busy = {(b.node, t) for b in busy for t in range(b.from_s, b.to_s)}
    expected = {(node, t - first) for node in range(4) for t in range(first, last)} - {
        (n, t - first) for n, t in is_busy
    }
    try:
        found = idle_between(busy, 4)
    except InputError:
        assert not expected
    else:
        rows = found.frame().itertuples(index=False)
        assert {(n, t) for n, a, b in rows for t in range(int(a), int(b))} == expected


def test_gaps_that_last_no_longer_than_asked_are_left_out() -> None:
    busy = [Busy(0, 10, 11), Busy(0, 13, 14), Busy(0, 17, 19), Busy(1, 10, 19)]
    for at_least_s, expected in ((-1.0, [(1, 3), (4, 7)]), (1.5, [(1, 3), (4, 7)]), (2.0, [(4, 7)])):
        found = idle_between(busy, 2, at_least_s=at_least_s).frame()
        assert [*zip(found["idle_from_s"], found["idle_to_s"], strict=True)] == expected
        assert set(found["node"]) == {0}
    with pytest.raises(InputError, match="none of the 2 nodes is idle for more than 3 s"):
        idle_between(busy, 2, at_least_s=3.0)


def test_a_swf_log_puts_jobs_on_the_lowest_free_nodes(tmp_path) -> None:
    lines = [
        "; a comment\n",
        SWF_LINE.format(job=1, submit=100, wait=0, run=50, procs=8),
        SWF_LINE.format(job=2, submit=100, wait=20, run=30, procs=3),
        SWF_LINE.format(job=3, submit=110, wait=-1, run=-1, procs=4),
        SWF_LINE.format(job=4, submit=150, wait=10, run=40, procs=12),
    ]
    (tmp_path / "log.swf").write_text("".join(lines))
    idle = from_swf(tmp_path / "log.swf", 3, processors_per_node=4)
    np.testing.assert_array_equal(idle.frame(), [[2, 0, 20], [0, 50, 60], [1, 50, 60], [2, 50, 60]])
    with pytest.raises(InputError, match="line 3: the job needs 1 nodes and 0 are free"):
        from_swf(tmp_path / "log.swf", 2, processors_per_node=4)


@pytest.mark.parametrize(
    ("node", "from_s", "refused"), [(1.0, 0.5, None), (1.5, 0.0, "node: 1.5"), (1.0, -0.5, "idle_from_s: -0.5")]
)
def test_a_table_in_parquet_has_whole_nodes_and_any_seconds(node, from_s, refused, tmp_path) -> None:
    path = tmp_path / "idle.parquet"
    pd.DataFrame({"node": [0.0, node], "idle_from_s": [0.0, from_s], "idle_to_s": [9.0, 9.5]}).to_parquet(path)
    if refused is None:
        np.testing.assert_array_equal(read_fragments(path).frame(), [[0, 0, 9], [1, 0.5, 9.5]])
        return
    with pytest.raises(InputError, match=f"row 2, column {refused}; expected"):
        read_fragments(path)


def test_a_table_of_sacct_gives_idle_nodes_and_their_names(tmp_path) -> None:
    (tmp_path / "jobs.txt").write_text(SACCT)
    idle, names = from_sacct(tmp_path / "jobs.txt")
    assert names == ["nid0001", "nid0002", "nid0003"]
    np.testing.assert_array_equal(idle.frame(), [[2, 0, 300], [0, 600, 900], [1, 600, 2400]])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("JobID|", "Job|", "the header is 'Job|Start"),
        ("2026-01-31T12:15:00", "yesterday", "line 3, column Start: 'yesterday'"),
        ("nid[0001-0002]", "nid[0002-0001]", "host list 'nid"),
        ("|RUNNING|nid0003", "|RUNNING", "line 4: has 4 values"),
    ],
)
def test_faults_in_a_table_of_sacct_are_named(tmp_path, old, new, said) -> None:
    (tmp_path / "jobs.txt").write_text(SACCT.replace(old, new))
    with pytest.raises(InputError) as error:
        from_sacct(tmp_path / "jobs.txt")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login1", ["login1"]),
        ("n[8-10,2],m", ["n8", "n9", "n10", "n2", "m"]),
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_host_lists_are_expanded(text, hosts) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["n[1-", "n]", "n[a-b]", "n[3-1]", "a,,b", "a,", "n[1-99999999999]", f"n[{'9' * 5000}]"]
)
def test_host_lists_that_are_none_are_refused(text) -> None:
    with pytest.raises(InputError, match="host list"):
        expand_hosts(text)


def test_host_lists_of_too_many_in_several_brackets_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(idle_trace, "_MOST", 8)
    assert len(expand_hosts("n[1-2][1-4]")) == len(expand_hosts("n[100-107]")) == 8
    for text in ("n[1-3][1-3]", "n[100-108]"):
        with pytest.raises(InputError, match="host list"):
            expand_hosts(text)


def test_slurm_is_asked_for_idle_nodes_and_for_those_already_adopted() -> None:
    asked = []

    def run(command):
        asked.append(command)
        return SINFO if command[0] == "sinfo" else SQUEUE

    found = SlurmScavenger(partition="batch", placeholder="ours", run=run).idle(0.0)
    assert found == {"nid0001", "nid0007", "nid0010", "nid0011", "nid0012", "nid0020"}
    assert all("--partition=batch" in command for command in asked)


def test_an_answer_of_slurm_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InputError, match="sinfo, line 2: 'slurm_load_partitions"):
        idle_of_sinfo("nid0001|idle\nslurm_load_partitions: Unable to contact slurm controller\n")


def test_a_machine_without_slurm_is_said_to_be_one(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="sinfo: no such program"):
        SlurmScavenger(partition="batch", placeholder="ours").idle(0.0)


def test_slurm_failing_is_an_error_of_the_run(tmp_path, monkeypatch) -> None:
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SlurmBusyError, match=r"sinfo --noheader --Node: .*Unable"):
        SlurmScavenger(partition="batch", placeholder="ours").idle(0.0)


def test_a_trace_is_played_back_at_its_speed() -> None:
    scavenger = TraceScavenger(trace=trace((0, 0, 100), (3, 50, 200)), speed=10.0)
    assert scavenger.idle(0.0) == {"node0"}
    assert scavenger.idle(5.0) == {"node0", "node3"}
    assert scavenger.idle(10.0) == {"node3"}
    assert scavenger.idle(20.0) == frozenset()
    assert scavenger.end_s() == 20.0
    slow = TraceScavenger(trace=trace((0, 0, 100)), speed=0.5)
    assert (slow.idle(199.0), slow.idle(200.0), slow.end_s()) == ({"node0"}, frozenset(), 200.0)
    with pytest.raises(InputError, match=r"scavenger: speed is 0\.0"):
        TraceScavenger(trace=trace((0, 0, 100)), speed=0.0)


class Flaky:
    """A scavenger that counts questions and fails where a test says so."""

    def __init__(self, *answers) -> None:
        self.answers, self.asked = list(answers), 0

    def idle(self, now_s: float) -> frozenset[str]:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return frozenset(answer)


def settled(scavenger: SeldomAsked, now_s: float) -> frozenset[str]:
    """Return what is known once the question that was put at a time is answered."""
    scavenger.idle(now_s)
    wait([scavenger._answer] if scavenger._answer else [])
    return scavenger.idle(now_s)


def test_slurm_is_asked_every_few_seconds_and_not_at_every_turn() -> None:
    slurm = Flaky({"a"})
    seldom = SeldomAsked(slurm, print, every_s=5.0)
    known = [settled(seldom, turn * 0.02) for turn in range(500)]  # 10 s of turns
    assert slurm.asked == 2
    assert set(known) == {frozenset({"a"})}


def test_a_manager_does_not_wait_for_slurm() -> None:
    asked, answer = Event(), Event()

    class Slow:
        def idle(self, now_s: float) -> frozenset[str]:
            asked.set()
            answer.wait(10)
            return frozenset({"a"})

    seldom = SeldomAsked(Slow(), print)
    assert seldom.idle(0.0) == frozenset()
    assert asked.wait(10)
    assert seldom.idle(1.0) == frozenset()
    answer.set()
    assert settled(seldom, 2.0) == {"a"}


def test_what_was_known_holds_while_slurm_fails_and_one_line_says_so() -> None:
    said = []
    failing = SimulationError("sinfo failed (Unable to contact)")
    seldom = SeldomAsked(Flaky({"a", "b"}, failing, failing, InputError("sinfo, line 1"), {"b"}), said.append, 1.0)
    assert [settled(seldom, now_s) for now_s in (0.0, 2.0, 4.0, 6.0)] == [{"a", "b"}] * 4
    assert [line.split(";")[0] for line in said] == ["sinfo failed (Unable to contact)", "sinfo, line 1"]
    assert settled(seldom, 8.0) == {"b"}


def test_slurm_that_has_never_answered_and_cannot_be_asked_ends_the_run() -> None:
    with pytest.raises(InputError, match="no such program"):
        settled(SeldomAsked(Flaky(InputError("sinfo: no such program")), print), 0.0)
    assert settled(SeldomAsked(Flaky(SimulationError("sinfo failed")), print), 0.0) == frozenset()
