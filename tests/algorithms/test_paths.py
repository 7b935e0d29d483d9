"""The path rules on flows made by hand, and what they do to jobs on small networks worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

import ddlsched
from algorithms.path.ecmp import Ecmp, Sglb, TopologyRoute
from algorithms.path.least_congested import LeastCongested
from ddlsched.errors import InputError, InvalidDecisionError, PluginError
from ddlsched.network.topology import Network
from ddlsched.results.explanation import explain
from ddlsched.results.slices import transfer_slices
from ddlsched.testing import flow_view, job_view, link_loads
from topologies.leaf_spine import LeafSpine

JOB = job_view(number=3, num_gpus=2, servers=(0, 4))


def test_ecmp_depends_on_flow_and_seed_and_on_nothing_else() -> None:
    flow = flow_view(JOB, [(0,), (1,), (2,), (3,)], source=0, target=4)
    again = flow_view(job_view(number=3, num_gpus=8), [(7,), (8,), (9,), (6,)], source=0, target=4, route=2)
    chosen = [Ecmp(seed=seed).path(flow, link_loads()) for seed in range(64)]
    assert chosen == [Ecmp(seed=seed).path(again, link_loads(jobs={1: 9}, flows={2: 3})) for seed in range(64)]
    back = flow_view(JOB, flow.paths, source=4, target=0)
    other = flow_view(job_view(number=4, num_gpus=2), flow.paths, source=0, target=4)
    for different in (back, other):
        assert chosen != [Ecmp(seed=seed).path(different, link_loads()) for seed in range(64)]


@pytest.mark.long
def test_ecmp_spreads_flows_evenly() -> None:
    counts = [0] * 8
    for number in range(1000):
        flow = flow_view(job_view(number=number), [(link,) for link in range(8)], source=number % 7, target=9)
        counts[Ecmp(seed=1).path(flow, link_loads(num_links=8))] += 1
    # Of a binomial 1000 x 1/8 the standard deviation is 10.5.
    assert all(abs(count - 125) < 52 for count in counts)


def test_least_congested_takes_the_path_whose_busiest_link_has_the_fewest_jobs() -> None:
    flow = flow_view(JOB, [(0, 1), (2, 3), (4, 5)])
    loads = {0: 0, 1: 3, 2: 2, 3: 2, 4: 2, 5: 1}
    assert LeastCongested().path(flow, link_loads(num_links=6, jobs=loads)) == 1
    fast = link_loads(num_links=6, jobs=loads, relative_bandwidth={1: 4.0, 0: 4.0})
    assert LeastCongested().path(flow, fast) == 0


def test_topology_route_takes_the_topologys() -> None:
    assert TopologyRoute().path(flow_view(JOB, [(0,), (1,), (2,)], route=2), link_loads()) == 2


# --- on a network: two leaves of two servers under two spines, uplinks as fast as a card


def job(job_id: str, iterations: int = 2, **given: Any) -> ddlsched.Job:
    iteration = ddlsched.DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=1e9)
    return ddlsched.Job(
        job_id=job_id, arrival_s=0.0, num_gpus=2, iterations=iterations, iteration=iteration, gpu_memory_mb=1, **given
    )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Job 0 on servers 0 and 2, job 1 on 1 and 3."""

    def place(self, job: Any, cluster: Any) -> list[int]:
        return [job.number, job.number + 2]


def run(path: Any, *jobs: ddlsched.Job, spines: int = 2, latency_s: float = 0.0, **given: Any) -> ddlsched.Result:
    topology = LeafSpine(servers_per_leaf=2, spines=spines, oversubscription=2 / spines, latency_s=latency_s)
    return ddlsched.simulate(
        ddlsched.Workload.of(jobs or (job("a"), job("b"))),
        ddlsched.Cluster(num_servers=4, gpus_per_server=1, topology=topology),
        placement=Spread(),
        order="fifo",
        communication="bounded-overlap:limit=9",
        contention="max-min:per_byte_s=1e-9",
        path=path,
        **given,
    )


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """The path of this number."""

    number: Any = 0

    def path(self, flow: Any, network: Any) -> Any:
        return self.number


def test_two_rings_on_one_spine_share_it_and_on_two_do_not() -> None:
    """Messages of 1e9 bytes at 1e9 bytes/s take 1 s (2 (n - 1) / n = 1 of them on each link); on one spine 2 s."""
    assert run(Fixed(number=1)).jobs["jct_s"].tolist() == pytest.approx([6.0, 6.0])
    assert run("least-congested").jobs["jct_s"].tolist() == pytest.approx([4.0, 4.0])


def test_least_congested_goes_round_the_first_job() -> None:
    """Job a takes spine 0 both ways, job b spine 1 both ways: each uplink and downlink carries 2 x 1e9 bytes."""
    links = run("least-congested").links.set_index("link")["bytes"]
    for leaf, spine in ((0, 0), (1, 0), (0, 1), (1, 1)):
        assert links[f"leaf {leaf} to spine {spine}"] == pytest.approx(2e9)
        assert links[f"spine {spine} to leaf {leaf}"] == pytest.approx(2e9)


@dataclass(frozen=True, kw_only=True)
class FirstOnItsOwn:
    """The first job on servers 1 and 3, every other on 0 and 2."""

    def place(self, job: Any, cluster: Any) -> list[int] | None:
        gpus = [1, 3] if job.number == 0 else [0, 2]
        return gpus if all(cluster.fits(job, gpu) for gpu in gpus) else None


@pytest.mark.long
@pytest.mark.parametrize("path", ["perfect", "crux", "crux:anew=True"])
def test_a_job_that_has_ended_is_not_gone_round(path: str) -> None:
    """Of three short jobs one after another the last has the spine of the first two, not the long one's."""
    long, *short = (job(str(number), iterations) for number, iterations in enumerate((10, 2, 2, 2)))
    cluster = ddlsched.Cluster(
        num_servers=4,
        gpus_per_server=1,
        topology=LeafSpine(servers_per_leaf=2, spines=2, oversubscription=1.0),
        exclusive=True,
    )
    result = ddlsched.simulate(
        ddlsched.Workload.of([long, *short]),
        cluster,
        placement=FirstOnItsOwn(),
        order="fifo",
        communication="bounded-overlap:limit=9",
        contention="max-min:per_byte_s=1e-9",
        path=path,
    )
    assert (result.jobs["finish_s"] - result.jobs["start_s"]).tolist() == pytest.approx([20.0, 4.0, 4.0, 4.0])


@pytest.mark.long
def test_ecmp_meets_or_not_as_its_hash_says() -> None:
    """Both jobs send up from leaf 0 and from leaf 1: a spine is shared where the hashes of two flows agree."""
    for seed in range(12):
        path = Ecmp(seed=seed)
        flows = {
            (number, source): flow_view(job_view(number=number), [(0,), (1,)], source=source, target=target)
            for number in (0, 1)
            for source, target in ((number, number + 2), (number + 2, number))
        }
        spine = {flow: path.path(view, link_loads()) for flow, view in flows.items()}
        meets = spine[0, 0] == spine[1, 1] or spine[0, 2] == spine[1, 3]
        assert run(path).jobs["jct_s"].tolist() == pytest.approx([6.0, 6.0] if meets else [4.0, 4.0]), seed


@pytest.mark.long
def test_the_default_is_the_topologys_route_to_the_bit() -> None:
    for topology in ("leaf-spine:spines=3", "fat-tree", "clos", "double-sided", "monkeytree", "rail-optimised", "star"):
        workload = ddlsched.Workload.of(ddlsched.microsoft_160(seed=2, scale=0.002).jobs[:30])
        cluster = ddlsched.Cluster(topology=topology)
        runs = [
            ddlsched.simulate(workload, cluster, scheduler="srsf-2", placement="random", path=path)
            for path in (None, "route")
        ]
        first, second = (result.finished.state for result in runs)
        assert first.jobs.tobytes() == second.jobs.tobytes(), topology
        assert first.links.tobytes() == second.links.tobytes(), topology


def test_the_timeline_says_the_path() -> None:
    slices = transfer_slices(run(Fixed(number=1), timeline=True))
    network = Network(LeafSpine(servers_per_leaf=2, spines=2), 4)
    names = {network.links[link].name for row in slices.itertuples() for link in row.links if link >= 4}
    assert names == {
        f"{end} to {other}"
        for leaf in (0, 1)
        for end, other in ((f"leaf {leaf}", "spine 1"), ("spine 1", f"leaf {leaf}"))
    }


def test_explain_names_the_link_of_the_path() -> None:
    result = ddlsched.simulate(
        ddlsched.Workload.of((job("a", iterations=3), job("b"))),
        ddlsched.Cluster(num_servers=4, gpus_per_server=1, topology=LeafSpine(servers_per_leaf=2, spines=2)),
        placement=Spread(),
        communication="bounded-overlap:limit=1",
        path=Fixed(number=1),
        timeline=True,
    )
    waited = explain(result, "a")
    assert {"link leaf 0 to spine 1", "link spine 1 to leaf 1"} <= set(waited["waited_for"])


@pytest.mark.parametrize("answer", [2, -1, 0.0, None, True, "0"])
def test_a_path_that_is_none_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidDecisionError) as refused:
        run(Fixed(number=answer))
    said = str(refused.value)
    assert f"path Fixed(number={answer!r}) at 0.0 s, job 'a': path answered {answer!r}" in said
    assert "for the flow from server 0 to 2; expected a whole number from 0 to 1, as it has 2 paths" in said


def test_a_policy_that_raises_is_named_with_job_and_time() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Broken:
        def path(self, flow: Any, network: Any) -> int:
            return flow.spine

    with pytest.raises(PluginError, match=r"path .*Broken.* at 0.0 s, job 'a': a flow has no attribute 'spine'"):
        run(Broken())


@dataclass(frozen=True, kw_only=True)
class BadPaths(LeafSpine):
    """Offers paths that are none."""

    fault: str = "none"

    def paths(self, graph: Any, source: int, target: int) -> Any:
        good = super().paths(graph, source, target)
        return {"none": [], "twice": [*good, good[0]], "gap": [(source, "spine 0", target)], "other": good[1:]}[
            self.fault
        ]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("none", "paths from server 0 to 2 answered 0 paths, 0 of them different; expected at least one, each once"),
        ("twice", "paths from server 0 to 2 answered 3 paths, 2 of them different"),
        ("gap", "the route from server 0 to 2 goes from 0 to 'spine 0'; expected a cable of the graph"),
        ("other", "the route from server 0 to 2 is none of the paths that it offers"),
    ],
)
def test_routes_that_are_not_connected_are_refused(fault: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        ddlsched.simulate(
            ddlsched.Workload.of((job("a"),)),
            ddlsched.Cluster(num_servers=4, gpus_per_server=1, topology=BadPaths(servers_per_leaf=2, fault=fault)),
            placement=Spread(),
            path="ecmp",
        )
    assert said in str(refused.value)
    assert "job 'a' at 0.0 s" in str(refused.value)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True])
def test_ecmp_refuses_a_bad_seed(seed: Any) -> None:
    with pytest.raises(InputError, match=r"ecmp: seed is .*; expected a whole number from 0"):
        Ecmp(seed=seed)


@dataclass(frozen=True, kw_only=True)
class FewestFlows:
    """The path with the fewest flows now."""

    def path(self, flow: Any, network: Any) -> int:
        flows = [sum(map(network.flows_on, links)) for links in flow.paths]
        return flows.index(min(flows))


def test_flows_are_those_of_jobs_that_skip_iterations_too() -> None:
    """Job b comes while job a sends on spine 0 (from 3 to 4 s of each 2 s), job c while it computes."""
    jobs = [
        replace(job("a", 20), arrival_s=0.0),
        replace(job("b", 20), arrival_s=3.5),
        replace(job("c"), arrival_s=4.5),
    ]

    @dataclass(frozen=True, kw_only=True)
    class InTurn:
        def place(self, job: Any, cluster: Any) -> list[int]:
            return [job.number, job.number + 3]

    given: dict[str, Any] = {"placement": InTurn(), "contention": "max-min:per_byte_s=1e-9", "path": FewestFlows()}
    topology = LeafSpine(servers_per_leaf=3, spines=2, oversubscription=1.5)
    cluster = ddlsched.Cluster(num_servers=6, gpus_per_server=1, topology=topology)
    result = ddlsched.simulate(ddlsched.Workload.of(jobs), cluster, **given)
    assert result.finished.state.run[0].skipped_iterations > 0
    names = [{result.finished.network.links[link].name for link in stay.links} for stay in result.finished.stays]
    assert ["leaf 0 to spine 0" in each for each in names] == [True, False, True]


# --- anew for each transfer


def test_sglb_hashes_among_the_paths_with_the_fewest_flows() -> None:
    """Scores 4, 1, 2, 1, 0 of one link each: the best two are paths 4 and 1, then 3."""
    flow = flow_view(JOB, [(0,), (1,), (2,), (3,), (4,)])
    loads = link_loads(num_links=5, flows={0: 4, 1: 1, 2: 2, 3: 1})
    assert {Sglb(best=2, seed=seed).path(flow, loads) for seed in range(40)} == {4, 1}
    assert {Sglb(best=3, seed=seed).path(flow, loads) for seed in range(40)} == {4, 1, 3}
    for seed in range(10):
        assert Sglb(best=3, seed=seed).path(flow, loads) == [4, 1, 3][flow.hash(seed) % 3]


@dataclass(frozen=True, kw_only=True)
class FewestFlowsAnew(FewestFlows):
    """Of each transfer, the path with the fewest flows now."""

    chosen: ClassVar[str] = "transfer"


@pytest.mark.long
def test_a_path_is_chosen_anew_for_each_transfer() -> None:
    """Both jobs send at once in each iteration, first a and then b choosing: on spine 0 and 1, so both take 1 s.

    Job b has another iteration, in which it is alone and takes spine 0: spine 0 carries 2 + 1, spine 1 2 messages up.
    """
    result = run(FewestFlowsAnew(), job("a"), job("b", iterations=3), timeline=True)
    assert result.jobs["jct_s"].tolist() == pytest.approx([4.0, 6.0])
    links = result.links.set_index("link")["bytes"]
    assert links["leaf 0 to spine 0"] == links["spine 0 to leaf 1"] == pytest.approx(3e9)
    assert links["leaf 0 to spine 1"] == links["spine 1 to leaf 1"] == pytest.approx(2e9)
    names = [link.name for link in result.finished.network.links]
    taken = [
        (row.job_id, row.iteration, "leaf 0 to spine 0" in {names[link] for link in row.links})
        for row in transfer_slices(result).itertuples()
    ]
    assert sorted(taken) == [("a", 0, True), ("a", 1, True), ("b", 0, False), ("b", 1, False), ("b", 2, True)]


@pytest.mark.long
@pytest.mark.parametrize("path", ["sglb", FewestFlowsAnew()], ids=["compiled", "in Python"])
def test_a_path_that_is_chosen_anew_is_as_late_as_one_that_stays(path: Any) -> None:
    stays, anew = (run(each, job("a"), latency_s=0.1).jobs["jct_s"].item() for each in (None, path))
    assert stays == anew > 4.1


@pytest.mark.long
def test_links_carry_what_is_sent_when_paths_change() -> None:
    """Over random jobs: of the bytes that each transfer sends, each of its links gets all, on whatever path."""
    workload = ddlsched.Workload.of(ddlsched.microsoft_160(seed=4, scale=0.001).jobs[:40])
    cluster = ddlsched.Cluster(topology="clos:nic_gbps=10", exclusive=True)
    result = ddlsched.simulate(workload, cluster, placement="random", path="sglb", contention="max-min", timeline=True)
    carried = dict.fromkeys(range(len(result.links)), 0.0)
    for row in transfer_slices(result).itertuples():
        for link in row.links:
            carried[link] += row.rate_bytes_per_s * (row.end_ns - row.start_ns) / 1e9
    slack_bytes = 2.0 * len(transfer_slices(result))
    assert result.links["bytes"].tolist() == pytest.approx(list(carried.values()), rel=1e-9, abs=slack_bytes)


def test_when_a_path_is_chosen_must_be_said_in_a_known_word() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sometimes(Fixed):
        chosen: ClassVar[str] = "sometimes"

    with pytest.raises(PluginError, match="chosen is 'sometimes'; expected 'placement' or 'transfer'"):
        run(Sometimes())


@pytest.mark.parametrize("given", [{"best": 0}, {"best": 1.5}, {"seed": -1}])
def test_sglb_refuses_bad_parameters(given: Any) -> None:
    with pytest.raises(InputError, match=r"sglb: (best|seed) is .*; expected a whole number from"):
        Sglb(**given)
