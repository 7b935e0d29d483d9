"""Path policies that are asked for each transfer, compiled: they decide what their Python form decides."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from jobs_by_hand import data_parallel_job

import ddlsched
from algorithms.communication.bounded_overlap import BoundedOverlap
from algorithms.path.ecmp import Sglb
from ddlsched.engine.native.jit import runs_in_python
from ddlsched.errors import InvalidDecisionError, PluginError
from ddlsched.network.weighted_shares import Mltcp
from ddlsched.testing import python_form
from ddlsched.workload.dag import CollectiveTask, IterationDag
from topologies.leaf_spine import LeafSpine

LEAVES = "leaf-spine:servers_per_leaf=2,spines=3,latency_s=2e-5"
CLUSTER = ddlsched.Cluster(num_servers=8, gpus_per_server=2, topology=LEAVES)
JOBS = ddlsched.microsoft_160(seed=4, scale=0.002).jobs


@dataclass(frozen=True, kw_only=True)
class ReadsAll:
    """A rule that makes no sense, of all that a flow and its network have."""

    chosen: ClassVar[str] = "transfer"
    compiled: ClassVar[bool] = True
    most: int = 0

    def path(self, flow: Any, network: Any) -> int:
        taken, least = flow.route, flow.hash(self.most) % 4 + flow.number + len(flow.cards)
        for place, links in enumerate(flow.paths):
            jobs = sum(network.jobs_on(link) / network.links[link].relative_bandwidth for link in links)
            flows = max((network.flows_on(link) for link in links), default=0)
            if int(jobs) + flows + (flow.source + flow.target + flow.job.num_gpus + network.now_ns) % 3 < least:
                taken, least = place, int(jobs) + flows
        return taken


def run(path: Any, jobs: Any = JOBS[:9], **given: Any) -> ddlsched.Result:
    options = {"communication": "bounded-overlap:limit=2", "contention": "max-min", "placement": "random", **given}
    return ddlsched.simulate(ddlsched.Workload.of(jobs), CLUSTER, path=path, **options)


def outcome(result: ddlsched.Result) -> list[Any]:
    """When jobs start and end, what they wait for, and what each link has carried, to the bit."""
    state = result.finished.state
    fields = "start_ns", "finish_ns", "network_wait_ns", "communicating_ns"
    return [*(state.jobs[field].tolist() for field in fields), state.links.bytes.tolist()]


def is_asked_in_the_loop(result: ddlsched.Result) -> bool:
    return bool(result.finished.state.run[0].choosing_address)


@pytest.mark.parametrize("path", [Sglb(best=2, seed=3), ReadsAll(most=5)], ids=["sglb", "ReadsAll"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"contention": "linear", "communication": "adadual", "order": "srsf"},
        {"contention": "equal-share", "communication": "preemptive:by=bytes"},
        {"contention": Mltcp(message_parts=3), "order": "stopping-srtf", "seed": 1},
        {"disturbances": ddlsched.Disturbances(jitter_cv=0.2), "seed": 2},
    ],
    ids=["max-min", "linear", "preemptive", "parts and stops", "jitter"],
)
def test_both_forms_decide_the_same(path: Any, given: dict[str, Any]) -> None:
    compiled, in_python = run(path, **given), run(python_form(path), **given)
    assert is_asked_in_the_loop(compiled)
    assert not is_asked_in_the_loop(in_python)
    assert outcome(compiled) == outcome(in_python)
    spine = compiled.links["link"].str.startswith("spine")
    assert (compiled.links["bytes"][spine] > 0).sum() > 4  # more than one spine's


class Interleaved(LeafSpine):
    """Even servers on one leaf, odd ones on the other, so that a ring leaves each leaf more than once."""

    def _switch(self, server: int) -> str:
        return f"leaf {server % 2}"


@dataclass(frozen=True, kw_only=True)
class Emptier:
    """The first spine, unless more flows are on the way over it than over the second."""

    chosen: ClassVar[str] = "transfer"

    def path(self, flow: Any, network: Any) -> int:
        first, second = flow.paths[0], flow.paths[1]
        return 1 if network.flows_on(first[0]) > network.flows_on(second[0]) else 0


@pytest.mark.long
def test_a_flow_sees_those_of_its_own_transfer_that_have_their_path() -> None:
    job = data_parallel_job(gpus=4, message_bytes=1e6)
    cluster = ddlsched.Cluster(num_servers=4, gpus_per_server=1, topology=Interleaved(servers_per_leaf=1, spines=2))
    for path in (Emptier(), python_form(Emptier())):
        result = ddlsched.simulate(ddlsched.Workload.of([job]), cluster, path=path, contention="max-min")
        assert is_asked_in_the_loop(result) is (type(path) is Emptier)
        spine = result.links["link"].str.contains("spine")
        assert (result.links["bytes"][spine] > 0).sum() == 8  # each of the four ways of both spines, of both leaves


IN_PYTHON = "is asked in Python, 10 to 50 times slower than compiled"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"timeline": True}, "the run is recorded, with the links of each transfer"),
        ({"communication": python_form(BoundedOverlap(limit=2))}, "BoundedOverlap(limit=2) is, too"),
    ],
    ids=["recorded", "beside another"],
)
def test_recorded_or_beside_a_policy_in_python_a_run_is_the_same_and_a_line_says_so_once(
    given: dict[str, Any], why: str, capsys: Any
) -> None:
    path = Sglb(best=3, seed=len(why))  # of its own, as a line is said once a process
    expected = outcome(run(path))
    assert capsys.readouterr().err == ""
    for _ in range(2):
        other = run(path, **given)
        assert not is_asked_in_the_loop(other)
        assert outcome(other) == expected
    assert capsys.readouterr().err == f"ddlsched: path {path} {IN_PYTHON}: {why}\n"


def grouped(job: ddlsched.Job, algorithm: str = "ring") -> ddlsched.Job:
    """Return the same job, whose workers all-reduce over all and then in two halves, which gather more at once."""
    half = job.num_gpus // 2
    groups = {"halves": (tuple(range(half)), tuple(range(half, job.num_gpus)))}
    alike = {"message_bytes": 1e6, "group": "halves", "algorithm": algorithm, "after": ("backward",)}
    more = [CollectiveTask(name=f"{kind} of halves", kind=kind, **alike) for kind in ("all-reduce", "all-gather")]
    return dataclasses.replace(job, iteration=IterationDag((*job.dag.tasks, *more), groups))


GROUPED = [grouped(job) if job.num_gpus > 1 else job for job in JOBS[:9]]


@pytest.mark.parametrize("path", [Sglb(best=2, seed=3), ReadsAll(most=5)], ids=["sglb", "ReadsAll"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"contention": "linear", "communication": "adadual", "order": "srsf"},
        {"contention": Mltcp(message_parts=3), "order": "stopping-srtf", "seed": 1},
        {"disturbances": ddlsched.Disturbances(jitter_cv=0.2), "placement": "lwf", "seed": 2},
    ],
    ids=["max-min", "linear", "parts and stops", "jitter"],
)
def test_both_forms_decide_the_same_about_rings_of_groups(path: Any, given: dict[str, Any]) -> None:
    compiled, in_python = run(path, GROUPED, **given), run(python_form(path), GROUPED, **given)
    transfers = compiled.finished.state.transfers
    assert is_asked_in_the_loop(compiled)
    assert (transfers.num_hops[transfers.num_entries > 0] > 1).all()  # none is left to Python
    assert not is_asked_in_the_loop(in_python)
    assert outcome(compiled) == outcome(in_python)


@pytest.mark.parametrize(
    ("topology", "first", "why"),
    [
        (
            "leaf-spine:servers_per_leaf=2,spines=3",
            grouped(JOBS[0], "halving-doubling"),
            "about transfers that are no rings (all-gather by halving-doubling)",
        ),
        ("rail-optimised:nvlink_gbps=3600", JOBS[0], "about all transfers, as the inside of servers takes time"),
    ],
    ids=["groups", "inside"],
)
def test_a_line_says_once_about_which_transfers_it_is_asked_in_python(
    topology: str, first: ddlsched.Job, why: str, capsys: Any
) -> None:
    path, cluster = Sglb(best=3, seed=len(why)), dataclasses.replace(CLUSTER, topology=topology)
    jobs = ddlsched.Workload.of([first, *JOBS[1:9]])

    def outcome_of(form: Any) -> list[Any]:
        return outcome(ddlsched.simulate(jobs, cluster, path=form, placement="random", communication="adadual"))

    assert outcome_of(path) == outcome_of(path) == outcome_of(python_form(path))
    assert capsys.readouterr().err == f"ddlsched: path {path} {IN_PYTHON}: {why}\n"


@dataclass(frozen=True, kw_only=True)
class OneTooMany:
    """No path from the hundredth transfer's time on."""

    chosen: ClassVar[str] = "transfer"
    from_ns: int = 0

    def path(self, flow: Any, network: Any) -> int:
        return len(flow.paths) if network.now_ns >= self.from_ns else 0


@pytest.mark.long
def test_what_is_no_path_is_refused_as_by_the_python_form() -> None:
    for path in (OneTooMany(from_ns=10**9), python_form(OneTooMany(from_ns=10**9))):
        with pytest.raises(
            InvalidDecisionError, match=r"path answered \d for the flow .*expected a whole number from 0"
        ):
            run(path)


@dataclass(frozen=True, kw_only=True)
class Sorts:
    """What is not compiled: it sorts a list."""

    chosen: ClassVar[str] = "transfer"

    def path(self, flow: Any, network: Any) -> int:
        return int(sorted(range(len(flow.paths)))[0])


@dataclass(frozen=True, kw_only=True)
class MustBeCompiled(Sorts):
    """The same, and says that it is to be compiled."""

    compiled: ClassVar[bool] = True


@pytest.mark.skipif(runs_in_python(), reason="nothing is compiled")
def test_what_cannot_be_compiled_runs_in_python_with_a_line_or_is_an_error(capsys: Any) -> None:
    assert not is_asked_in_the_loop(run(Sorts(), JOBS[:4]))
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"path Sorts() {IN_PYTHON}" in said
    with pytest.raises(PluginError, match=r"path MustBeCompiled\(\): compiled is True, but .*calls sorted"):
        run(MustBeCompiled(), JOBS[:4])
