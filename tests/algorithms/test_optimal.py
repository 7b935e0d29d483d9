"""The optimum agrees with the engine and with hand-made instances, and no policy beats it."""

from __future__ import annotations

import numpy as np
import pytest
from experiment_scripts import scripts_of
from jobs_by_hand import data_parallel_job

import ddlsched
from ddlsched import Cluster, DataParallelIteration, Job, Workload
from ddlsched.errors import InputError
from ddlsched.network.contention import Linear

(exact,) = scripts_of("beyond_ada_srsf", "exact")
optimum = exact.optimum
UNIT_S = 0.01
MODEL = Linear(per_byte_s=1e-9, penalty_per_byte_s=0.3e-9)
TWO = Cluster(num_servers=2, gpus_per_server=2)
PLACEMENTS = ("lwf:kappa=1", "blocks", "first-fit")
NO_OVERLAP = ("bounded-overlap:limit=1", "preemptive:by=time", "preemptive:by=bytes")


def job(name: str, gpus: int, iterations: int, units: tuple[int, int, int], arrival: int = 0) -> Job:
    forward, backward, transfer = units
    return data_parallel_job(
        name,
        gpus,
        arrival_s=arrival * UNIT_S,
        iterations=iterations,
        forward_s=forward * UNIT_S,
        backward_s=backward * UNIT_S,
        message_bytes=transfer * 1e7,
    )


def drawn(seed: int, jobs: int) -> Workload:
    rng = np.random.default_rng(seed)
    draw = [rng.integers(low, high + 1, size=jobs) for low, high in ((1, 4), (1, 2), (1, 2), (1, 2), (1, 3), (0, 4))]
    return Workload(
        tuple(
            job(str(i), int(g), int(n), (int(f), int(b), int(m)), int(a))
            for i, (g, n, f, b, m, a) in enumerate(zip(*draw, strict=True))
        )
    )


def best(workload: Workload, cluster: Cluster = TWO, **options) -> float:
    found = optimum(workload, cluster, contention=MODEL, unit_s=UNIT_S, **options)
    assert found.proven
    assert found.lower_bound_s == pytest.approx(found.average_jct_s)
    return found.average_jct_s


def test_one_job_alone_takes_its_own_time():
    assert best(Workload.of([job("a", 4, 2, (1, 2, 3))])) == pytest.approx(2 * (1 + 2 + 3) * UNIT_S)
    assert best(Workload.of([job("a", 2, 2, (1, 2, 3))])) == pytest.approx(2 * (1 + 2) * UNIT_S)


def test_a_short_transfer_interrupts_a_long_one():
    """Long: compute 0-2, transfer 2-12. Short, on the same GPUs after it: 2-4; its transfer of 1 pauses the long."""
    jobs = Workload.of([job("long", 4, 1, (1, 1, 10)), job("short", 4, 1, (1, 1, 1), arrival=2)])
    assert best(jobs) == pytest.approx((13 + 3) / 2 * UNIT_S)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_every_schedule_of_the_engine_is_one_of_the_model(seed):
    workload = drawn(seed, 3)
    least = best(workload)
    for placement in PLACEMENTS:
        for communication in NO_OVERLAP:
            run = ddlsched.simulate(
                workload,
                TWO,
                placement=placement,
                order="srtf",
                communication=communication,
                contention=MODEL,
                timeline=True,
            )
            assert best(workload, replay=run) == pytest.approx(run.jobs["jct_s"].mean())
            assert run.jobs["jct_s"].mean() >= least - 1e-9


@pytest.mark.parametrize("communication", ["adadual", "bounded-overlap:limit=2"])
@pytest.mark.parametrize("seed", range(3))
def test_on_two_servers_overlapping_does_not_beat_it(seed, communication):
    workload = drawn(seed, 3)
    run = ddlsched.simulate(workload, TWO, communication=communication, contention=MODEL)
    assert run.jobs["jct_s"].mean() >= best(workload) - 1e-9


@pytest.mark.parametrize(
    ("workload", "cluster", "named"),
    [
        ([job("a", 1, 1, (1, 1, 1))], Cluster(num_servers=2, gpus_per_server=2, topology="leaf-spine"), "star"),
        ([job("a", 1, 1, (1, 1, 1))], Cluster(num_servers=2, gpus_per_server=2, gpu_memory_mb=0.5), "memory"),
    ],
)
def test_what_the_model_does_not_cover_is_refused(workload, cluster, named):
    with pytest.raises(InputError, match=named):
        optimum(Workload.of(workload), cluster, contention=MODEL, unit_s=UNIT_S)


def test_times_that_are_no_whole_units_are_refused():
    with pytest.raises(InputError, match="multiples"):
        optimum(Workload.of([job("a", 1, 1, (1, 1, 1))]), TWO, contention=MODEL, unit_s=0.007)


def isolated(small_bytes: float, communication: str) -> float:
    """Return the sum of JCTs of two jobs that are one transfer each, the new one 0.2 s later."""
    iteration = {name: DataParallelIteration(forward_s=0, backward_s=0, message_bytes=m) for name, m in
                 (("old", 1e9), ("new", small_bytes))}  # fmt: skip
    jobs = [
        Job(job_id=n, arrival_s=a, num_gpus=2, iterations=1, iteration=iteration[n], gpu_memory_mb=1.0)
        for n, a in (("old", 0.0), ("new", 0.2))
    ]
    cluster = Cluster(num_servers=2, gpus_per_server=1)
    return ddlsched.simulate(Workload.of(jobs), cluster, communication=communication).jobs["jct_s"].sum()


@pytest.mark.long
@pytest.mark.parametrize("small_bytes", [1e6, 1e8, 2e8, 2.9e8, 3.1e8, 5e8, 9e8])
def test_adadual_is_the_better_of_waiting_and_overlapping_two_transfers(small_bytes):
    """Left of the old transfer at 0.2 s: 1e9 - 0.2 / b; the threshold is 0.392 of that, 3.006e8 bytes."""
    waiting, overlapping = (isolated(small_bytes, f"bounded-overlap:limit={n}") for n in (1, 2))
    assert isolated(small_bytes, "adadual") == min(waiting, overlapping)
    assert isolated(small_bytes, "preemptive:by=bytes") <= min(waiting, overlapping)
