"""Conformance classes of what decides about jobs and GPUs. Subclass one and give it ``make``."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ddlsched.cluster.capacity import CapacityTrace
from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.interference import MAX_PENALTY_SHARE
from ddlsched.engine.decisions.checks import (
    what_is_wrong_with_allocations,
    what_is_wrong_with_move,
    what_is_wrong_with_stops,
)
from ddlsched.policies.promises import promises
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.simulation import simulate
from ddlsched.testing.conformance_runs import (
    CLUSTER,
    SEEDS,
    Conformance,
    assert_linear,
    assert_promises_change_nothing,
    assert_runs_alike,
    assert_stops_and_moves_alike,
    begun,
    example_elastic_workload,
    finishes_of,
)
from ddlsched.testing.handmade import capacity_view, cluster_view, elastic_job_view, job_queue, job_view
from ddlsched.workload.elastic_job import ConstantRescaleCost


class PlacementConformance(Conformance):
    """Checks of a placement policy."""

    def test_answers_none_or_that_many_fitting_gpus(self) -> None:
        """GPUs are different, as many as asked for, and have the memory."""
        rng = np.random.default_rng(7)
        for _ in range(50):
            policy = begun(self.make(), Cluster(num_servers=4, gpus_per_server=4))  # as that of the view
            free_mb, load_s = rng.choice([500.0, 4000.0], 16).tolist(), rng.choice([0.0, 1.5, 7.0], 16).tolist()
            cluster = cluster_view(free_memory_mb=free_mb, load_s=load_s)
            job = job_view(num_gpus=int(rng.integers(1, 9)), gpu_memory_mb=1000.0)
            answer = _placed(policy, job, cluster)
            if answer is not None:
                assert len(answer) == len(set(answer)) == job.num_gpus
                assert all(cluster.fits(job, gpu) for gpu in answer)

    def test_waits_when_no_gpu_has_the_memory(self) -> None:
        """A job that does not fit now is answered None."""
        policy = begun(self.make(), Cluster(num_servers=4, gpus_per_server=4))
        assert _placed(policy, job_view(), cluster_view(free_memory_mb=10.0)) is None

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run."""
        assert_runs_alike("placement", self.make())

    def test_moves_are_jobs_that_run_and_gpus_that_hold_them(self) -> None:
        """Of a policy that has ``moves``: jobs that it was given, each once, with GPUs that have the memory."""
        rng = np.random.default_rng(11)
        for _ in range(40 if hasattr(begun(self.make()), "moves") else 0):
            policy = begun(self.make(), Cluster(num_servers=4, gpus_per_server=4))
            running, cluster = _running(rng)
            left = {id(job) for job in running}
            for answer in policy.moves(running, cluster):
                wrong = what_is_wrong_with_move(answer, left, cluster)
                assert wrong is None, wrong
                left.discard(id(answer[0]))

    def test_moves_run_alike(self) -> None:
        """Of a policy that has ``moves``: the same seed gives the same run, and promises change nothing."""
        if hasattr(begun(self.make()), "moves"):
            assert_stops_and_moves_alike("placement", self.make())


def _running(rng: np.random.Generator) -> tuple[list[JobView], ClusterView]:
    """Return jobs with one, two or three GPUs each for themselves, and their cluster of 4 servers of 4 GPUs."""
    gpus, running = rng.permutation(16).tolist(), []
    residents: dict[int, list[JobView]] = {}
    for number in range(int(rng.integers(0, 6))):
        own = [gpus.pop() for _ in range(int(rng.integers(1, 4)))] if len(gpus) > 3 else []
        if own:
            servers = tuple(dict.fromkeys(gpu // 4 for gpu in own))
            left = int(rng.integers(1, 100))
            running.append(job_view(number=number, num_gpus=len(own), gpus=own, servers=servers, iterations_left=left))
            residents |= {gpu: [running[-1]] for gpu in own}
    free_mb = [0.0 if gpu in residents else float(rng.choice([500.0, 32768.0])) for gpu in range(16)]
    return running, cluster_view(free_memory_mb=free_mb, residents=residents, exclusive=True, now_s=5.0)


def _placed(policy: Any, job: JobView, cluster: ClusterView) -> Any:
    """Return the GPUs that a placement policy chooses for the only job that waits, or None."""
    if not hasattr(policy, "place_round"):
        return policy.place(job, cluster)
    return next((gpus for _, gpus in policy.place_round(job_queue(job), cluster)), None)


class OrderingConformance(Conformance):
    """Checks of an ordering policy."""

    def test_keys_are_totally_ordered(self) -> None:
        """Any two keys compare one way only, and a key equals itself."""
        policy = begun(self.make())
        jobs = [job_view(number=n, num_gpus=n % 5 + 1, iterations_left=9 * n % 100) for n in range(20)]
        keys = [policy.key(job, 3.0) for job in jobs]
        for a in keys:
            assert a == a
            assert all((a < b) + (b < a) + (a == b) == 1 for b in keys)

    def test_linear_keys_are(self) -> None:
        """``key_is_linear`` is so, if the class says it."""
        policy = begun(self.make())
        for num_gpus, servers in product((1, 3, 4), ((), (0, 1)) if promises(policy, "key_is_linear") else ()):
            jobs = [job_view(num_gpus=num_gpus, servers=servers, iterations_left=left) for left in range(60, 0, -1)]
            assert_linear([policy.key(job, 3.0) for job in jobs])

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run; both forms agree, and promises change nothing."""
        assert_runs_alike("order", self.make())
        assert_promises_change_nothing("order", self.make())

    def test_stops_are_jobs_that_run(self) -> None:
        """Of an order that has ``stops``: some of the running jobs that it was given, each once."""
        rng = np.random.default_rng(13)
        for _ in range(40 if hasattr(begun(self.make()), "stops") else 0):
            running, cluster = _running(rng)
            waiting = [
                job_view(number=20 + n, num_gpus=int(rng.integers(1, 9)), iterations_left=int(rng.integers(1, 100)))
                for n in range(int(rng.integers(1, 4)))
            ]
            if running:
                policy = begun(self.make(), Cluster(num_servers=4, gpus_per_server=4))
                queue = job_queue(*sorted(waiting, key=partial(policy.key, now_s=5.0)))
                wrong = what_is_wrong_with_stops(list(policy.stops(running, queue, cluster)), running)
                assert wrong is None, wrong

    def test_stops_run_alike(self) -> None:
        """Of an order that has ``stops``: the same seed gives the same run, in both forms; promises change nothing."""
        if hasattr(begun(self.make()), "stops"):
            assert_stops_and_moves_alike("order", self.make())


class InterferenceConformance(Conformance):
    """Checks of a model of interference, which must know the models ``a``, ``b`` and jobs without one."""

    def test_penalties_are_shares(self) -> None:
        """From 0 to 1000, and the same when asked again."""
        model = self.make()
        for pair in product((None, "a", "b"), repeat=2):
            share = model.penalty_share(*pair)
            assert 0 <= share <= MAX_PENALTY_SHARE
            assert share == model.penalty_share(*pair)

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run."""
        assert_runs_alike("interference", self.make())


class AllocationConformance(Conformance):
    """Checks of an allocation policy."""

    def test_answers_what_can_be_carried_out(self) -> None:
        """Numbers of GPUs and batches are allowed, and there are as many GPUs; with any jobs, also none."""
        rng = np.random.default_rng(7)
        for count in [*range(12), 40]:
            held = {n: [2 * n, 2 * n + 1] for n in range(min(count, 4)) if rng.random() < 0.5}
            jobs = [
                elastic_job_view(number=n, gpus=held.get(n, ()), batch=64 if n in held else 0, max_gpus=2 + n % 5)
                for n in range(count)
            ]
            capacity = capacity_view(held=[gpu for gpus in held.values() for gpu in gpus])
            answer = begun(self.make()).allocate(jobs, capacity, 0.0)
            assert what_is_wrong_with_allocations(answer, jobs, capacity) is None

    def test_every_job_ends_though_servers_come_and_go(self) -> None:
        """Every job finishes or is dropped, and the same seed gives the same run, to the bit, recorded or not."""
        capacity = CapacityTrace.of([(0, 0, 1e9), (1, 0, 400), (1, 900, 1e9), (2, 300, 1e9), (3, 0, 200)])
        options: dict[str, Any] = {"capacity": capacity, "rescale_cost": ConstantRescaleCost.restart(5.0)}
        for seed in SEEDS:
            options |= {"seed": seed, "allocation": self.make()}
            runs = [
                simulate(example_elastic_workload(seed), CLUSTER, timeline=recorded, **options)
                for recorded in (False, False, True)
            ]
            assert set(runs[0].jobs["state"]) <= {"finished", "dropped"}
            assert finishes_of(runs[0]) == finishes_of(runs[1]), "the same seed gives the same run"
            assert finishes_of(runs[0]) == finishes_of(runs[2]), "recording changed it"
