"""Every contention model beside numbers by hand: every collective, links that carry parts of a message, and insides."""

from __future__ import annotations

from itertools import product

import pytest
from jobs_by_hand import Fixed, data_parallel_job
from tiers import tried

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.errors import InputError
from ddlsched.network.collectives import KINDS
from ddlsched.network.contention import ContentionModel, Linear
from ddlsched.network.topology import Network
from ddlsched.plugins.names import names, resolve
from ddlsched.simulation import simulate
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, IterationDag
from ddlsched.workload.groups import Groups
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.tasks import Task
from topologies.star import Star

MESSAGE = 1e8
PAIR: Groups = {"pair": ((0, 2),)}
NEIGHBOURS: Groups = {"pair": ((0, 1),)}


def collective(kind: str, algorithm: str = "ring") -> Task:
    group = "pair" if kind == "send" else None
    return CollectiveTask(name="c", kind=kind, message_bytes=MESSAGE, algorithm=algorithm, group=group)


def seconds(topology: str, gpus: int, model: str, task: Task, groups: Groups, num_jobs: int = 1) -> list[float]:
    """Return how long a collective of four workers takes, in each of as many jobs, side by side on the same servers."""
    dag = IterationDag((task,), groups if task.group else {})
    jobs = [
        Job(job_id=f"j{number}", arrival_s=0.0, num_gpus=4, iterations=1, iteration=dag, gpu_memory_mb=1.0)
        for number in range(num_jobs)
    ]
    per_server = gpus * num_jobs
    places = {
        job.job_id: [worker // gpus * per_server + number * gpus + worker % gpus for worker in range(4)]
        for number, job in enumerate(jobs)
    }
    cluster = Cluster(num_servers=4 // gpus, gpus_per_server=per_server, topology=topology)
    given = {"placement": Fixed(gpus=places), "communication": "bounded-overlap:limit=9", "order": "fifo"}
    return simulate(Workload.of(jobs), cluster, contention=model, **given).jobs["jct_s"].tolist()


def linear_constants(model: str) -> tuple[float, float] | None:
    """Return b and eta of a linear model, and None of another."""
    found: ContentionModel = resolve("contention", model).bound_to(Network(resolve("topology", "star"), 1))
    return (found.per_byte_s, found.penalty_per_byte_s) if isinstance(found, Linear) else None


THIN = "leaf-spine:servers_per_leaf=2,oversubscription=4"
"""Cards of 1.25 GB/s; a leaf has a cable of 0.3125 GB/s, a quarter of that, to each of two spines."""

THIN_CABLES = [
    # The ring crosses each of the cables between leaves that it uses once, with 2 x 3/4 x 100 MB: 150 / 312.5.
    # The linear model counts 100 MB, at a quarter of a card's pace.
    ("all-reduce", 0.48, 1e8),
    ("all-gather", 0.24, 0.5e8),
    ("reduce-scatter", 0.24, 0.5e8),
    # Two servers send 25 MB each to the one of the other leaf whose spine the cable leads to: 50 / 312.5.
    ("all-to-all", 0.16, 0.5e8),
    # The chain 0, 1, 2, 3 goes over it once; so does a send from 0 to 2.
    ("broadcast", 0.32, 1e8),
    ("send", 0.32, 1e8),
]


@pytest.mark.long
@pytest.mark.parametrize("model", names("contention"))
@pytest.mark.parametrize(("kind", "expected_s", "counted_bytes"), THIN_CABLES, ids=[row[0] for row in THIN_CABLES])
def test_item_1_a_cable_that_carries_a_part_of_the_message(
    model: str, kind: str, expected_s: float, counted_bytes: float
) -> None:
    if model == "packet-rings" and kind != "all-reduce":
        with pytest.raises(InputError, match=r"job 'j0' has other collectives, but contention PacketRings.* rings"):
            seconds(THIN, 1, model, collective(kind), PAIR)
        return
    task = AllReduceTask(name="c", message_bytes=MESSAGE) if kind == "all-reduce" else collective(kind)
    constants = linear_constants(model)
    if constants:
        expected_s = 4 * constants[0] * counted_bytes
    assert seconds(THIN, 1, model, task, PAIR) == pytest.approx([expected_s], rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("model", [name for name in names("contention") if name != "packet-rings"])
def test_two_jobs_whose_parts_share_cables(model: str) -> None:
    """Every cable has 2 x 50 MB: the last of the two ends after 100 / 312.5 s, whoever goes first."""
    constants = linear_constants(model)
    if constants:
        b, eta = constants
        assert seconds(THIN, 1, model, collective("all-to-all"), {}, 2) == pytest.approx(
            [4 * (2 * b + eta) * 0.5e8] * 2, rel=1e-6
        )
        return
    found = seconds(THIN, 1, model, collective("all-to-all"), {}, 2)
    assert max(found) == pytest.approx(0.32, rel=1e-6)
    if model != "crux":  # which puts one job before the other
        assert min(found) == pytest.approx(0.32, rel=1e-6)


SLOW_INSIDE = "star:nvlink_gbps=5"
"""Ports of 0.625 GB/s, half of a card."""

SLOW_PORTS = [
    # One ring over 4 ranks: 150 MB through every port. The linear model counts 100 MB, at half of a card's pace.
    ("all-reduce", "ring", 0.24, 1e8),
    # Inside 2 ranks: 2 x 1/2 x 100 MB through each port; between 2 servers 100 MB over cards.
    ("all-reduce", "hierarchical", 0.16, 1e8),
    ("all-gather", "ring", 0.12, 0.5e8),
    ("all-gather", "hierarchical", 0.08, 0.5e8),
    ("reduce-scatter", "ring", 0.12, 0.5e8),
    ("reduce-scatter", "hierarchical", 0.08, 0.5e8),
    ("broadcast", "ring", 0.16, 1e8),
    # From worker 0 to worker 1, beside it.
    ("send", "ring", 0.16, 1e8),
]


@pytest.mark.parametrize("model", [name for name in names("contention") if name != "packet-rings"])
@pytest.mark.parametrize(("kind", "algorithm", "expected_s", "counted_bytes"), SLOW_PORTS)
def test_item_1_ports_slower_than_cards(
    model: str, kind: str, algorithm: str, expected_s: float, counted_bytes: float
) -> None:
    constants = linear_constants(model)
    if constants:
        expected_s = 2 * constants[0] * counted_bytes
    found = seconds(SLOW_INSIDE, 2, model, collective(kind, algorithm), NEIGHBOURS)
    assert found == pytest.approx([expected_s], rel=1e-6)


@pytest.mark.parametrize("model", [name for name in names("contention") if name != "packet-rings"])
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_cards_limit_what_goes_straight_to_other_servers(model: str, algorithm: str) -> None:
    """Of 25 MB for each, two workers send 4 x 25 MB over the card of their server, and 25 MB through each port."""
    constants = linear_constants(model)
    expected_s = 1e8 * constants[0] if constants else 0.08
    found = seconds(SLOW_INSIDE, 2, model, collective("all-to-all", algorithm), {})
    assert found == pytest.approx([expected_s], rel=1e-6)


@pytest.mark.parametrize("model", [name for name in names("contention") if name != "packet-rings"])
def test_two_jobs_whose_ports_are_their_own_and_whose_card_is_shared(model: str) -> None:
    """All-gathers round each server (50 MB through each port, 0.08 s) and between them (50 MB over a card, 0.04 s)."""
    constants = linear_constants(model)
    found = seconds(SLOW_INSIDE, 2, model, collective("all-gather", "hierarchical"), {}, 2)
    if constants:
        b, eta = constants
        assert found == pytest.approx([max(2 * b, 2 * b + eta) * 0.5e8] * 2, rel=1e-6)
    else:
        assert found == pytest.approx([0.08] * 2, rel=1e-6)


# ---- thin cables between servers that have an inside: 2 servers of 2 GPUs, each below a leaf of its own

WITHIN_AND_BETWEEN = "rail-optimised:rails=1,hosts_per_unit=1,spines=1,rail_gbps=10,oversubscription=4,nvlink_gbps="
"""Leaves under a spine: cards of 1.25 GB/s, a cable of 0.3125 GB/s each way; ports of 5 or of 0.0625 GB/s."""
REDUCED_IN_SWITCHES = 1 / 0.686
"""By how much more bytes count where switches add up: a port reaches this part of its bandwidth."""


def through(algorithm: str, kind: str, round_4: float) -> tuple[float, float] | None:
    """Return messages that go over the cable each way, and through a port; ``round_4`` are those of a ring of 4."""
    if algorithm == "nccl":  # Trees have fewer steps than rings, and fewer bytes.
        algorithm = "double-binary-tree" if kind == "all-reduce" else "ring"
    half = kind in ("all-gather", "reduce-scatter")
    by_hand = {
        ("ring", "all-reduce"): (round_4, round_4),
        ("ring", "half"): (round_4 / 2, round_4 / 2),
        ("ring", "broadcast"): (1, 1),
        # Two ranks send a quarter to each of two others over the cable, and one to the rank beside them.
        ("ring", "all-to-all"): (1, 1 / 4),
        ("ring", "send"): (1, 0),
        # In rings of 2 an all-reduce moves the message once: inside, and between servers half of it in each of 2 rings.
        ("hierarchical", "all-reduce"): (1, 1),
        ("hierarchical", "half"): (1 / 2, 1 / 2),
        ("hierarchical", "broadcast"): (1, 1),
        ("hierarchical", "all-to-all"): (1, 1 / 4),
        # Half of it up and down each of two trees of 2 servers; all of it along the chain of 2 ranks, there and back.
        ("double-binary-tree", "all-reduce"): (1, 1),
        # Halves go to the other server from both ranks, quarters to the rank beside; in an all-reduce back as well.
        ("halving-doubling", "all-reduce"): (2, 1 / 2),
        ("halving-doubling", "half"): (1, 1 / 4),
        # Two of four blocks to the next rank, every other time in the other server; then two to the next but one.
        ("halving-doubling", "all-to-all"): (1 / 2 + 1, 1 / 2),
        ("direct", "all-reduce"): (2, 1 / 2),
        ("direct", "half"): (1, 1 / 4),
        ("direct", "broadcast"): (2, 1),
        ("direct", "all-to-all"): (1, 1 / 4),
        ("direct", "send"): (1, 0),
        # Once up and once down; in an all-reduce a port has the rank's own half as well.
        ("in-network", "all-reduce"): (1, 3 / 2 * REDUCED_IN_SWITCHES),
        ("in-network", "broadcast"): (1, REDUCED_IN_SWITCHES),
    }
    return by_hand.get((algorithm, "half" if half else kind))


EVERY_COLLECTIVE = [(algorithm, kind) for algorithm in names("collective") for kind in KINDS]
THIN_AND_INSIDE = list(product(names("contention"), [(40.0, 1e-6), (0.5, 1e-4)]))


def thin_and_inside_by_default(place: int) -> bool:
    """Return whether a case is no slow one: of each model one of two speeds, and of linear ones ``linear`` alone."""
    return place % 4 in (0, 3) and "gbe" not in THIN_AND_INSIDE[place][0]


@pytest.mark.long
@pytest.mark.parametrize(("model", "port"), tried(THIN_AND_INSIDE, thin_and_inside_by_default))
def test_item_1_thin_cables_and_insides_with_every_collective(model: str, port: tuple[float, float]) -> None:
    """A weight x share counts on a link in whole 2^-20: of a share of 1/20 and a weight of 1/4 that is 1 / 13,000."""
    nvlink_gbps, close = port
    topology = f"{WITHIN_AND_BETWEEN}{nvlink_gbps}"
    constants = linear_constants(model)
    card_s = MESSAGE * constants[0] if constants else MESSAGE / 1.25e9
    for algorithm, kind in EVERY_COLLECTIVE:
        counted = through(algorithm, kind, 1 if constants else 2 * 3 / 4)
        if counted is None:
            continue
        if model == "packet-rings":
            with pytest.raises(
                InputError, match="contention PacketRings: the topology states the inside of its server"
            ):
                seconds(topology, 2, model, collective(kind, algorithm), PAIR)
        else:
            expected_s = card_s * max(4 * counted[0], 10 / nvlink_gbps * counted[1])
            found = seconds(topology, 2, model, collective(kind, algorithm), PAIR)
            assert found == pytest.approx([expected_s], rel=close), (algorithm, kind)


def test_item_1_a_kind_that_a_collective_has_not_is_refused_by_name() -> None:
    for algorithm, kind in EVERY_COLLECTIVE:
        if through(algorithm, kind, 1) is None:
            with pytest.raises(InputError, match=f"collective {algorithm}: has no {kind}; expected a task of one of"):
                seconds(f"{WITHIN_AND_BETWEEN}40", 2, "max-min", collective(kind, algorithm), PAIR)


# ---- what packet-rings refuses before a run


def test_item_1_packet_rings_refuses_an_inside_of_servers() -> None:
    with pytest.raises(InputError, match="contention PacketRings: the topology states the inside of its servers"):
        seconds(SLOW_INSIDE, 2, "packet-rings", AllReduceTask(name="c", message_bytes=MESSAGE), {})


def refused(**given: object) -> str:
    dag = IterationDag((AllReduceTask(name="c", message_bytes=MESSAGE),))
    job = Job(job_id="a", arrival_s=0.0, num_gpus=4, iterations=1, iteration=dag, gpu_memory_mb=1.0)
    cluster = Cluster(num_servers=4, gpus_per_server=1, topology=THIN)
    with pytest.raises(InputError) as caught:
        simulate(Workload.of([job]), cluster, contention="packet-rings", **given)
    return str(caught.value)


def test_packet_rings_refuses_chosen_paths_and_state_that_moves() -> None:
    assert "on the topology's own routes; expected a run without a path policy" in refused(path="ecmp")
    moving = refused(order="stopping-srtf")
    assert "the state of jobs that stop or move goes otherwise; expected state_mb=0" in moving


def test_packet_rings_rates_stopped_jobs_without_state() -> None:
    dag = IterationDag((AllReduceTask(name="c", message_bytes=MESSAGE),))
    job = Job(job_id="a", arrival_s=0.0, num_gpus=2, iterations=1, iteration=dag, gpu_memory_mb=1.0)
    cluster = Cluster(num_servers=2, gpus_per_server=1)
    none = Disturbances(state_mb=0.0)
    given = {"contention": "packet-rings", "order": "stopping-srtf", "disturbances": none}
    assert simulate(Workload.of([job]), cluster, **given).jobs["jct_s"].item() == pytest.approx(0.08)


def test_a_message_of_nothing_ends_beside_one_of_packets() -> None:
    """Two jobs on the same two servers, of which one reduces nothing."""
    cluster = Cluster(num_servers=2, gpus_per_server=2)
    jobs = [
        Job(
            job_id=name,
            arrival_s=0.0,
            num_gpus=2,
            iterations=3,
            iteration=IterationDag((AllReduceTask(name="c", message_bytes=message_bytes),)),
            gpu_memory_mb=1.0,
        )
        for name, message_bytes in (("none", 0.0), ("less", 1e-300), ("some", MESSAGE))
    ]
    run = simulate(
        Workload.of(jobs),
        cluster,
        contention="packet-rings",
        placement=Fixed(gpus={"none": [0, 2], "less": [1, 3], "some": [0, 2]}),
        communication="bounded-overlap:limit=9",
    )
    assert run.jobs["jct_s"].tolist() == pytest.approx([0.0, 0.0, 0.24], abs=1e-6)


@pytest.mark.parametrize(("latency_s", "by_hand_ns"), [(0.0, 30 * 65_536 / 50), (250e-9, 30 * (500 + 65_536 / 50))])
def test_item_18_a_ring_of_16_that_reduces_1_mib_takes_what_an_analytical_model_says(
    latency_s: float, by_hand_ns: float
) -> None:
    """30 steps of a 16th over two cables at 50 GB/s, by hand; ``tests/rivals`` has ASTRA-sim's own."""
    job = data_parallel_job("a", 16, message_bytes=2**20)
    topology = Star(nic_gbps=400.0, latency_s=latency_s)
    cluster = Cluster(num_servers=16, gpus_per_server=1, topology=topology)
    found = simulate(Workload((job,)), cluster, contention="max-min", placement="first-fit")
    assert found.jobs["communication_s"].item() * 1e9 == pytest.approx(by_hand_ns, abs=1.0)
