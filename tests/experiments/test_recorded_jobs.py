"""Recorded jobs simulated alone take as long as they did, and collectives as long as in ASTRA-sim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from chakra_files import COLLECTIVE, COMPUTE, chakra_node, write_chakra
from experiment_scripts import scripts_of
from measurements import DATA, needs_data

from ddlsched.errors import InputError
from ddlsched.training.recorded.rank_steps import RankCommunication, RankTrace, WallTime
from ddlsched.workload.dag import AllReduceTask, ComputeTask, IterationDag

run, astra_sim, rebucketing, measured, phases, together, processors = scripts_of(
    "recorded_jobs", "run", "astra_sim", "rebucketed", "measured", "phases", "together", "shared_processors"
)
MIB = 1 << 20


@pytest.mark.long
@pytest.mark.parametrize("name", ["cnn", "gpt", "recommender", *(f"gpu/{name}" for name in run.GPU_JOBS)])
def test_a_job_simulated_from_its_recording_takes_what_was_measured(name: str) -> None:
    ranks = measured.traces(name)
    if name == "gpu/resnet":  # Its all-reduces fit no line of the network: with their own times alone.
        here_s = float(measured.replayed_s(ranks, measured.collective_s(ranks)).mean())
    else:
        here_s = run.simulated_s(run.merged(ranks).dag, measured.fitted([ranks]))
    assert here_s == pytest.approx(measured.iteration_s(ranks), rel=0.03)


@pytest.mark.long
def test_item_35_recording_makes_a_step_on_a_gpu_no_more_than_half_as_long_again() -> None:
    table = run.beside_unrecorded(measured.RECORDINGS / measured.ON_GPU)
    assert (table["measured_ms"] / table["unrecorded_ms_mean"]).between(0.97, 1.5).all()
    assert table["told_longer_percent"].between(-5, 50).all()


def test_ranks_that_take_turns_at_being_late_make_no_iteration_longer() -> None:
    """Two ranks end every step together or 1 s apart, in turn: three steps of theirs take 10 s each, not 11."""
    step = next(iter(measured.traces("cnn")[0].steps.values()))
    walls_s = [[10, 11, 9], [11, 9, 10]]
    ranks = [
        RankTrace("", rank, 2, {}, {n: replace(step, wall_ns=wall * 10**9) for n, wall in enumerate(own)}, 0)
        for rank, own in enumerate(walls_s)
    ]
    assert measured.iteration_s(ranks) == pytest.approx(10)
    assert list(measured.longest_s(ranks)) == [11, 11, 10]


@pytest.mark.parametrize(
    ("name", "most_off", "most_off_a_step"),
    [
        ("cnn", 0.01, 0.02),
        ("recommender", 0.04, 0.05),
        *((name, 0.01, 0.015) for name in ("gpt", *(f"gpt-{size:g}mb" for size in run.SWEPT_MB))),
    ],
)
def test_steps_replayed_with_their_own_collectives_take_what_was_measured(
    name: str, most_off: float, most_off_a_step: float
) -> None:
    ranks = measured.traces(name)
    replayed_s = measured.replayed_s(ranks, measured.collective_s(ranks))
    measured_s = measured.longest_s(ranks)
    assert replayed_s.mean() == pytest.approx(measured_s.mean(), rel=most_off)
    assert np.abs(replayed_s - measured_s).mean() < most_off_a_step * measured_s.mean()
    assert np.corrcoef(replayed_s, measured_s)[0, 1] > 0.95


# ---- Beside ASTRA-sim


def collective(node_id: int, kind: int, size: int, *after: int) -> bytes:
    attributes = {"is_cpu_op": False, "comm_type": kind, "comm_size": size}
    return chakra_node(node_id, COLLECTIVE, after=after, attributes=attributes)


def computed(node_id: int, duration_us: int, *after: int) -> bytes:
    return chakra_node(node_id, COMPUTE, after=after, duration_us=duration_us, attributes={"is_cpu_op": False})


ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7
TORUS_TRACES = {
    "all-reduce": [computed(0, 500), collective(1, ALL_REDUCE, 12 * MIB, 0)],
    "all-gather": [computed(0, 500), collective(1, ALL_GATHER, MIB, 0)],
    "reduce-scatter": [computed(0, 500), collective(1, REDUCE_SCATTER, 12 * MIB, 0)],
    "all-to-all": [computed(0, 500), collective(1, ALL_TO_ALL, 12 * MIB, 0)],
    # Two layers whose weights are gathered and whose gradients are scattered, with experts behind the second.
    "sharded": [
        computed(0, 500),
        collective(1, ALL_GATHER, MIB, 0),
        computed(2, 3000, 1),
        collective(3, ALL_GATHER, MIB, 0),
        computed(4, 4000, 2, 3),
        collective(5, ALL_TO_ALL, 12 * MIB, 4),
        computed(6, 9000, 5),
        collective(7, REDUCE_SCATTER, 12 * MIB, 6),
        computed(8, 6000, 6),
        collective(9, REDUCE_SCATTER, 12 * MIB, 8),
        collective(10, ALL_REDUCE, MIB, 8),
        computed(11, 800, 7, 9, 10),
    ],
}


@pytest.mark.parametrize("name", TORUS_TRACES)
def test_the_traces_that_are_committed_are_these(name: str, tmp_path: Path) -> None:
    written = write_chakra(tmp_path / "made.et", TORUS_TRACES[name])
    assert written.read_bytes() == (astra_sim.TRACES / f"{name}.et").read_bytes()


@pytest.mark.parametrize("name", TORUS_TRACES)
def test_chakra_traces_on_two_dimensions_take_what_they_did_in_astra_sim(name: str) -> None:
    assert abs(astra_sim.torus_trace(name).off) < 0.001


@pytest.mark.parametrize("kind", astra_sim.KINDS)
@pytest.mark.parametrize("torus", [astra_sim.RING, astra_sim.TORUS], ids=["4", "4 x 3"])
def test_a_collective_takes_what_astra_sim_computes(kind: str, torus) -> None:
    assert abs(astra_sim.collective(kind, torus).off) < 0.001


def test_phases_of_an_all_reduce_scatter_reduce_and_gather_back() -> None:
    assert phases.phases_of("all-reduce", 24.0, (4, 3)) == [
        ("reduce-scatter", 0, 24.0),
        ("all-reduce", 1, 6.0),
        ("all-gather", 0, 24.0),
    ]
    assert phases.phases_of("all-gather", 24.0, (4, 3)) == [("all-gather", 1, 6.0), ("all-gather", 0, 24.0)]
    assert phases.phases_of("reduce-scatter", 24.0, (4, 3, 2)) == [
        ("reduce-scatter", 0, 24.0),
        ("reduce-scatter", 1, 6.0),
        ("reduce-scatter", 2, 2.0),
    ]
    assert phases.phases_of("all-to-all", 24.0, (4, 1, 3)) == [("all-to-all", 0, 24.0), ("all-to-all", 2, 24.0)]


def test_rings_of_a_torus_share_no_cable() -> None:
    torus = astra_sim.TORUS
    graph = torus.graph(12)
    assert torus.groups(0) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    assert torus.groups(1) == ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11))
    assert torus.route(graph, 3, 4) == [3, ("place", 3), ("place", 0), ("place", 4), 4]
    cables = [
        cable
        for dimension in (0, 1)
        for ring in torus.groups(dimension)
        for source, target in zip(ring, [*ring[1:], ring[0]], strict=True)
        for cable in [tuple(torus.route(graph, source, target)[1:-1])]
    ]
    assert len(set(cables)) == len(cables) == 24
    assert all(len(cable) == 2 for cable in cables)


@needs_data("training_traces")
def test_chakra_traces_take_what_they_did_in_astra_sim() -> None:
    rows = astra_sim.ring_traces(DATA / "training_traces" / "chakra_synthetic")
    assert {row.what: row.astra_sim_ms for row in rows} == {"serial": 57.58, "ddp_overlap": 57.04}
    for row in rows:
        assert row.simulated_ms == pytest.approx(row.astra_sim_ms, abs=1e-6)


# ---- Buckets, the network, and jobs that share it


def test_joined_buckets_start_when_the_last_of_them_could() -> None:
    tasks = []
    for number in range(4):
        tasks.append(ComputeTask(name=f"c{number}", duration_ns=5, after=(f"c{number - 1}",) if number else ()))
        before = (f"r{number - 1}",) if number else ()
        tasks.append(AllReduceTask(name=f"r{number}", message_bytes=10.0, after=(*before, f"c{number}")))
    tasks.append(ComputeTask(name="end", duration_ns=5, after=("c3", "r0", "r1", "r2", "r3")))
    joined = rebucketing.rebucketed(IterationDag(tuple(tasks)), 15.0)
    reduces = [(task.message_bytes, task.after) for task in joined.tasks if isinstance(task, AllReduceTask)]
    assert reduces == [(20.0, ("c0", "c1")), (20.0, ("r0", "c2", "c3"))]
    assert joined.tasks[-1].after == ("c3", "r0", "r2")
    assert joined.compute_ns == 25


def test_the_network_of_a_recording_is_found_again() -> None:
    """Two ranks, the second always 3 us late: an all-reduce takes 2 us and 1 ns a byte from then on."""
    ranks = []
    for rank, late_ns in enumerate((0, 3000)):
        stretch = WallTime(0, 100_000)
        for place, size in enumerate((1000, 5000)):
            ready_ns = 40_000 * place
            done_ns = ready_ns + 3000 + 2000 + size
            stretch.communicate(
                RankCommunication("all-reduce", size), ready_ns + late_ns, None, (ready_ns + late_ns, done_ns)
            )
        ranks.append(RankTrace("", rank, 2, {}, {0: stretch.step()}, 0))
    line = measured.fitted([ranks])
    assert line.latency_s == pytest.approx(2e-6)
    assert line.per_byte_s == pytest.approx(1e-9)


def test_jobs_that_share_a_network_take_longer_than_alone() -> None:
    """Each sends 1 MB at 10 MB/s and computes 100 ms: alone 200 ms, two at once never less than the card needs."""
    dag = IterationDag(
        (
            ComputeTask(name="c", duration_ns=100_000_000),
            AllReduceTask(name="r", message_bytes=1e6, after=("c",)),
        )
    )
    network = measured.Line(0.0, 1e-7)
    sharing = together.max_min(network)
    assert together.simulated_s({"a": dag}, {"a": 5}, sharing) == {"a": pytest.approx(0.2)}
    both = together.simulated_s({"a": dag, "b": dag}, {"a": 5, "b": 5}, sharing)
    assert both == {"a": pytest.approx(0.3), "b": pytest.approx(0.3)}
    assert together.counts_of({"a": dag, "b": dag}, network, 6.0) == {"a": 20, "b": 20}


def test_a_step_beside_others_is_one_in_which_they_all_run() -> None:
    """Alone an all-reduce takes 100 ms, beside another one 200; the job of fewer steps ends, or goes on."""
    dag = IterationDag((AllReduceTask(name="r", message_bytes=1e6),))
    sharing, steps = together.max_min(measured.Line(0.0, 1e-7)), {"short": 5, "long": 8}
    dags = dict.fromkeys(steps, dag)
    assert together.simulated_s(dags, steps, sharing)["long"] == pytest.approx((5 * 0.2 + 3 * 0.1) / 8)
    assert together.beside_s(dags, steps, sharing) == {"short": pytest.approx(0.2), "long": pytest.approx(0.2)}


@pytest.mark.long
def test_models_have_the_network_of_the_recordings_and_shares_of_another_experiment() -> None:
    found = together.models(measured.Line(1e-3, 9e-8)).values()
    assert {(model.latency_s, model.per_byte_s) for model in found} == {(1e-3, 9e-8)}
    _, packets, mixes, pairs, lossless = found
    assert (packets.overhead, packets.step_s) == (0.04, 0.0)
    assert (mixes.exponent, mixes.window_bytes, mixes.loss, mixes.step_s) == (0.25, 3e5, 0.03, 0.0)
    assert pairs.exponent == lossless.exponent == pytest.approx(0.93, abs=0.01)
    assert (pairs.loss, lossless.loss) == (0.03, 0.0)


def test_what_sending_takes_from_computing_is_taken_out_and_put_back() -> None:
    """Of 100 us of computation an all-reduce of 60 us has half: without it 70 us, and alone it takes 30 us."""
    stretch = WallTime(0, 100_000)
    stretch.communicate(RankCommunication("all-reduce", 1000), 20_000, None, (20_000, 80_000))
    ranks = [RankTrace("", rank, 2, {}, {0: stretch.step()}, 0) for rank in (0, 1)]
    alone, network = processors.undisturbed(ranks)
    assert [step.compute_ns for rank in alone for step in rank.steps.values()] == [70_000, 70_000]
    assert network.latency_s + 1000 * network.per_byte_s == pytest.approx(30e-6)
    assert processors.played_s(run.merged(alone).dag, network) == pytest.approx(100e-6)


@pytest.mark.long
def test_buckets_of_other_sizes_are_foretold_from_a_recording_with_the_smallest() -> None:
    """With processors of their own, they were foretold to be slower, where they are faster."""
    rows = run.swept(measured.RECORDINGS)
    assert [row["bucket_mb"] for row in rows] == list(run.SWEPT_MB)
    assert max(abs(row["foretold_off_percent"]) for row in rows) < 3
    assert rows[-1]["own_processors_ms"] > rows[0]["own_processors_ms"]
    assert rows[-1]["foretold_ms"] < rows[0]["foretold_ms"]


def test_only_steps_in_which_all_jobs_ran_are_compared() -> None:
    ranks = measured.traces("cnn")
    first = next(iter(ranks[0].steps.values()))

    def run_of(begins_s: list[float], wall_s: float) -> list:
        steps = {
            number: replace(first, begin_ns=round(1e9 * begin_s), wall_ns=round(1e9 * wall_s))
            for number, begin_s in enumerate(begins_s)
        }
        return [replace(rank, steps=steps) for rank in ranks]

    found = together.at_once({"a": run_of([0, 1, 2, 3], 1.0), "b": run_of([0.5, 2.5], 1.2)})
    assert {name: list(run[0].steps) for name, run in found.items()} == {"a": [1, 2], "b": [0, 1]}
    with pytest.raises(InputError, match="no step of b lies where all jobs ran; expected more --seconds"):
        together.at_once({"a": run_of([0, 1], 1.0), "b": run_of([0.5, 3.5], 3.0)})
