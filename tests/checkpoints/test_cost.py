"""The time of a change of parallelism, and where new ranks are best put."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from ddlsched.checkpoints.change_cost import (
    PlannedRescaleCost,
    ReplicaRule,
    Site,
    link_bytes,
    reconfiguration_s,
    staying,
)
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.plan import plan
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Tensor
from ddlsched.cluster.cluster import Cluster
from ddlsched.errors import InputError
from ddlsched.simulation import simulate
from ddlsched.workload.elastic_job import ElasticJob, LinearCurve, Rescale
from ddlsched.workload.job import Workload
from topologies.leaf_spine import LeafSpine
from topologies.star import Star

MB = 1_000_000
GPT = job_tensors(
    StoredTransformer(num_layers=4, hidden=32, heads=4, vocabulary=256, pad_vocabulary=32),
    dtype="F32",
    optimiser=Optimiser(),
)
SITE = Site(topology=Star(nic_gbps=0.8), host_bytes_per_s=1e9, restart_s=7.0)
"""Cards of 100 MB/s."""


def one_tensor(num_ranks: int, hosts: tuple[int, ...], first_device: int = 0) -> TensorCollection:
    """Return replicas of a tensor of 10 MB."""
    tensor = Tensor(name="w", shape=(10 * MB,), dtype="U8")
    devices = tuple(range(first_device, first_device + num_ranks))
    allocation = StoredRegion(devices=devices, hosts=hosts)
    return TensorCollection(tensors=(tensor,), parallelism=StoredParallelism(dp=num_ranks), allocation=allocation)


def gpt(gpus_per_host: int = 2, **degrees: int) -> TensorCollection:
    parallelism = StoredParallelism(**degrees)
    allocation = StoredRegion.packed(parallelism.num_ranks, gpus_per_host)
    return TensorCollection(tensors=GPT, parallelism=parallelism, allocation=allocation)


def test_bytes_over_the_bandwidth_of_the_busiest_cable() -> None:
    """One source serves two hosts: its card sends twice what theirs receive."""
    found = reconfiguration_s(plan(one_tensor(1, (0,)), one_tensor(2, (1, 2), first_device=1)), SITE)
    assert found.network_s == pytest.approx(0.2)
    assert found.busiest == "0 to switch"
    assert found.host_s == 0
    assert found.total_s == pytest.approx(7.2)


def test_a_host_fetches_once_and_copies() -> None:
    found = reconfiguration_s(plan(one_tensor(1, (0,)), one_tensor(3, (1, 1, 1), first_device=1)), SITE)
    assert found.network_s == pytest.approx(0.1)
    assert found.host_s == pytest.approx(0.02)
    assert found.transfer_s == found.network_s


def test_what_stays_costs_the_restart_alone() -> None:
    found = reconfiguration_s(plan(gpt(tp=2, dp=2), gpt(tp=2, dp=2)), SITE)
    assert (found.network_s, found.host_s, found.busiest, found.total_s) == (0, 0, "", 7.0)


def test_uplinks_are_shared_where_the_network_is_oversubscribed() -> None:
    topology = LeafSpine(servers_per_leaf=2, spines=1, oversubscription=2, nic_gbps=0.8)
    old, new = one_tensor(2, (0, 1)), one_tensor(2, (2, 3), first_device=2)
    star = reconfiguration_s(plan(old, new), SITE)
    spine = reconfiguration_s(plan(old, new), Site(topology=topology, host_bytes_per_s=1e9))
    assert star.network_s == pytest.approx(0.1)
    assert spine.network_s == pytest.approx(0.2)
    assert "spine" in spine.busiest


@pytest.mark.long
@settings(max_examples=examples(25, by_default=8))
@given(
    old=st.sampled_from([(1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1), (1, 2, 2)]),
    new=st.sampled_from([(1, 1, 1), (2, 1, 2), (2, 2, 2), (4, 2, 1), (1, 4, 1), (2, 1, 3)]),
)
def test_staying_never_moves_more_and_uses_the_same_devices(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    before = gpt(**dict(zip(("tp", "pp", "dp"), old, strict=True)))
    packed = gpt(**dict(zip(("tp", "pp", "dp"), new, strict=True)))
    put = staying(before, packed)
    assert sorted(zip(put.allocation.devices, put.allocation.hosts, strict=True)) == sorted(
        zip(packed.allocation.devices, packed.allocation.hosts, strict=True)
    )
    assert plan(before, put).bytes_by_way["network"] <= plan(before, packed).bytes_by_way["network"]


def test_staying_keeps_every_stage_where_it_is_when_replicas_are_added() -> None:
    before = gpt(tp=2, pp=2, dp=1)
    put = staying(before, gpt(tp=2, pp=2, dp=2))
    change = plan(before, put)
    loads, _ = link_bytes(change, SITE.topology)
    assert max(loads.values()) == max(change.lower_bound_bytes.values())
    packed = plan(before, gpt(tp=2, pp=2, dp=2))
    assert reconfiguration_s(change, SITE).network_s < 0.7 * reconfiguration_s(packed, SITE).network_s


def two_stages(first: Tensor, second: Tensor, *devices: int, hosts: tuple[int, int] = (0, 0)) -> TensorCollection:
    return TensorCollection(
        tensors=(first, second), parallelism=StoredParallelism(pp=2),
        allocation=StoredRegion(devices=devices, hosts=hosts), stages=(0, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "devices", "hosts", "stays"),
    [
        # One of two can stay on its host: the larger one, though the other could stay on its device, too.
        (100, 60, (1, 2), (0, 1), (1, 2)),
        (60, 100, (0, 2), (0, 1), (2, 0)),
        # On one host each stays on its device.
        (100, 60, (1, 0), (0, 0), (0, 1)),
        (100, 60, (0, 1), (0, 0), (0, 1)),
        # Of as many bytes the one on its device.
        (100, 100, (1, 2), (0, 1), (2, 1)),
        (100, 100, (0, 2), (0, 1), (0, 2)),
    ],
)
def test_state_that_need_not_leave_its_host_counts_first_and_then_its_device(
    first: int, second: int, devices: tuple[int, int], hosts: tuple[int, int], stays: tuple[int, int]
) -> None:
    tensors = [Tensor(name=str(n), shape=(size,), dtype="U8", places=(n,)) for n, size in enumerate((first, second))]
    old, new = two_stages(*tensors, 0, 1), two_stages(*tensors, *devices, hosts=hosts)
    put = staying(old, new)
    assert put.allocation.devices == stays
    assert put.allocation.hosts == tuple(dict(zip(devices, hosts, strict=True))[device] for device in stays)
    assert staying(old, new, lost=[0, 1]).allocation == new.allocation


def test_state_counts_in_bytes_and_both_jobs_have_the_same() -> None:
    few = Tensor(name="few", shape=(5,), dtype="F64", places=(0,))
    many = Tensor(name="many", shape=(30,), dtype="U8", places=(1,))
    old = two_stages(few, many, 0, 1)
    assert staying(old, two_stages(few, many, 1, 2, hosts=(0, 1))).allocation.devices == (1, 2)
    with pytest.raises(InputError, match="tensor many: is not in the new collection; expected the same tensors"):
        staying(old, TensorCollection(tensors=(few,), parallelism=StoredParallelism()))


def test_a_price_has_hosts_of_eight_and_no_first_start_unless_told() -> None:
    """A megabyte on each of nine GPUs: two hosts read it at half a megabyte a second, together."""
    asked: list[int] = []
    star = Star(nic_gbps=0.8)
    topology: Any = SimpleNamespace(graph=lambda size: asked.append(size) or star.graph(size), route=star.route)  # type: ignore[func-returns-value]
    site = Site(topology=topology, host_bytes_per_s=1e9, storage_bytes_per_s=5e5)
    tensor = Tensor(name="w", shape=(MB,), dtype="U8")
    model = PlannedRescaleCost(tensors=(tensor,), parallelism_of=ReplicaRule(), site=site)
    assert [model.seconds(0, gpus) for gpus in (1, 8, 9, 16, 17)] == [2.0, 2.0, 4.0, 4.0, 6.0]
    assert asked == [1, 1, 2, 2, 3]
    assert model.start_s == 0.0


def cost(**fields: object) -> PlannedRescaleCost:
    given_site = Site(topology=Star(nic_gbps=0.8), host_bytes_per_s=1e9, restart_s=7.0, storage_bytes_per_s=1e6)
    defaults = {"tensors": GPT, "parallelism_of": ReplicaRule(tp=2), "site": given_site, "gpus_per_host": 2}
    return PlannedRescaleCost(**{**defaults, **fields})  # type: ignore[arg-type]


@pytest.mark.long
def test_sizes_have_prices_of_their_own() -> None:
    model = cost()
    grown, shrunk, resumed = model.seconds(2, 4), model.seconds(4, 2), model.seconds(0, 2)
    assert shrunk == 7.0
    assert grown > shrunk
    state_bytes = sum(tensor.num_bytes for tensor in GPT)
    assert resumed == pytest.approx(7.0 + state_bytes / 1e6, rel=0.01)
    assert model.seconds(4, 4, lost_gpus=2) == grown


def test_what_only_lost_devices_held_is_read_from_storage() -> None:
    model = cost()
    assert model.seconds(4, 2, lost_gpus=2) == 7.0
    assert model.seconds(2, 4, lost_gpus=2) == model.seconds(0, 4)


def test_numbers_of_gpus_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="3 GPUs: expected a multiple of tp x pp = 2"):
        cost().seconds(2, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"host_bytes_per_s": 0}, "host_bytes_per_s is 0"),
        ({"storage_bytes_per_s": -1.0}, "storage_bytes_per_s is -1.0"),
        ({"restart_s": float("inf")}, "restart_s is inf"),
    ],
)
def test_sites_that_cannot_be_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Site(**{"topology": Star(), "host_bytes_per_s": 1e9, **fields})  # type: ignore[arg-type]


def test_a_price_can_be_sent_to_other_processes() -> None:
    model = cost()
    assert model.seconds(2, 4) == pickle.loads(pickle.dumps(model)).seconds(2, 4)


def test_a_change_is_priced_by_its_sizes() -> None:
    def change(**fields: Any) -> Rescale:
        none = {"job_id": "j", "time_s": 0.0, "from_batch": 8, "to_batch": 8, "lost_gpus": 0, "added_gpus": 0}
        none |= {"removed_gpus": 0, "to_servers": 1, "is_first": False, "pending_s": 0.0, "lost_samples": 0}
        return Rescale(**{**none, **fields})

    model = cost(start_s=3.0)
    assert model(change(from_gpus=0, to_gpus=2, added_gpus=2, is_first=True)) == 3.0
    assert model(change(from_gpus=0, to_gpus=2, added_gpus=2)) == model.seconds(0, 2)
    assert model(change(from_gpus=2, to_gpus=4, added_gpus=2)) == model.seconds(2, 4)
    assert model(change(from_gpus=4, to_gpus=2, removed_gpus=2, lost_gpus=2)) == model.seconds(4, 2, 2)
    assert model(change(from_gpus=2, to_gpus=2, to_batch=16)) == 0.0


def test_an_elastic_job_waits_for_as_long_as_the_plan_says() -> None:
    """Two GPUs become four when the first job leaves: the other stands still for the time of that change."""
    model = cost(tensors=GPT)
    curve = LinearCurve(fixed_s=0.0, sample_s=0.1)
    common = {"arrival_s": 0.0, "curve": curve, "gpu_batch": 8, "min_batch": 8, "max_batch": 8, "min_gpus": 2}
    jobs = [
        ElasticJob(job_id="short", samples=80, max_gpus=2, **common),
        ElasticJob(job_id="long", samples=800, max_gpus=4, **common),
    ]
    cluster = Cluster(num_servers=2, gpus_per_server=2)
    policy = "elastic-scaling:interval_s=1,queue=true"
    result = simulate(Workload.of(jobs), cluster, allocation=policy, rescale_cost=model)
    long = result.jobs.set_index("job_id").loc["long"]
    assert long["restart_s"] == pytest.approx(model.seconds(2, 4))


def test_a_rule_of_replicas_has_one_stage_and_one_part_unless_told() -> None:
    assert ReplicaRule()(4) == ReplicaRule(tp=1, pp=1)(4)
