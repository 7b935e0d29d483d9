"""Builds the engine's arrays from a workload and a cluster."""

from __future__ import annotations

from collections import Counter
from itertools import product
from numbers import Real

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.disturbances import Disturbances, jitter_factors
from ddlsched.cluster.interference import MAX_PENALTY_SHARE, InterferenceModel
from ddlsched.engine.build_tasks import build_tasks, refuse_too_large
from ddlsched.engine.field_values import KEY_WORDS, NEVER, JobState
from ddlsched.engine.loop.room import count_room
from ddlsched.engine.records import Records, State, make_records
from ddlsched.errors import InputError, PluginError, UnknownNameError, guarded, label
from ddlsched.network.rates import LEVELS
from ddlsched.network.topology import Network
from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import write_fields
from ddlsched.units import MAX_NS
from ddlsched.workload.dag import ComputeTask
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.groups import demands_of, is_grouped, slices_of
from ddlsched.workload.job import Job, Workload

_FIRST_RESIDENTS = 8
_FIRST_ENTRIES = 1024
_SAMPLES = 256
_FIRST_SAMPLE_NS = 1_000_000
_SEEDS = 2**32
_MOST_MODELS = 1000
_SNAPSHOT_WORDS = 1 << 17
_SNAPSHOT_WORDS_OF_GROUPS = 1 << 26  # four times what 16,384 different workers take; nothing unwritten takes memory
_SCRATCH = 1 << 12


def build_state(
    workload: Workload,
    cluster: Cluster,
    network: Network,
    disturbances: Disturbances,
    interference: InterferenceModel | None,
    rng: np.random.Generator,
    num_slices: int,
    moving: bool,
) -> State:
    """Return the state before the first event.

    ``rng`` draws which GPUs are slow, and the seed of the jitter; ``moving`` is whether policies may stop or move jobs.

    Raises
    ------
    InputError
        A job that can never fit the cluster.
    PluginError
        The interference model raised, or answered what is no penalty.
    """
    refuse_misfits(workload, cluster)
    refuse_levels(workload, cluster, network)
    jobs = _jobs(workload, moving)
    refuse_too_large(workload, jobs)
    arrays, owned = build_tasks(workload, jobs, moving)
    num_transfers = len(arrays["transfers"])
    num_gpus, num_items = cluster.num_gpus, cluster.num_gpus + num_transfers + len(jobs)
    memory_classes, jobs["memory_class"] = np.unique(jobs.memory_bytes, return_inverse=True)
    penalties_ppm, jobs["kind"] = _penalties_ppm(workload, interference)
    speeds, jobs["speed_row"] = _speeds(workload, cluster)
    slowdowns = disturbances.slowdowns(num_gpus, rng)
    longest = max(len(workload), num_transfers)
    numbers = {
        "open_gpus touched_gpus": num_gpus,
        "heap end_ns": num_items,
        "waiting active fresh": num_transfers,
        "queue finished dormant running": len(workload),
        "touched_links due_links stale_links doubted_links": len(network.links),
        "job_links path_links": _FIRST_ENTRIES,
    }
    filling = make_records("filling", 1)
    filling.num_levels = 1
    state = State(
        run=_run(cluster, workload, disturbances, interference, int(rng.integers(_SEEDS))),
        jobs=jobs,
        gpus=_gpus(cluster, slowdowns),
        links=_links(network),
        entries=make_records("entry", _FIRST_ENTRIES),
        crossings=make_records("crossing", 1),
        covers=make_covers(len(network.links)),
        hops=make_records("hop", _FIRST_ENTRIES),
        paths=make_records("path", _FIRST_ENTRIES),
        steps=make_records("step", len(network.links) * LEVELS),
        filling=filling,
        slices=make_records("slice", num_slices),
        samples=make_records("sample", _SAMPLES + 1),
        foreseen=make_records("foresight", _SAMPLES + 2),
        members=np.zeros(0, np.int64),
        ready=np.zeros(len(arrays["pending"]), np.uint8),
        residents=np.zeros((num_gpus, _FIRST_RESIDENTS), np.int64),
        position=_nowhere(num_items, num_gpus, num_transfers, owned),
        arrivals=np.argsort(jobs.arrival_ns, kind="stable").astype(np.int64),
        work=np.zeros(len(workload) + num_transfers, np.int64),
        snapshots=np.zeros(_SNAPSHOT_WORDS_OF_GROUPS if jobs.grouped.any() else _SNAPSHOT_WORDS, np.int64),
        memory_classes=memory_classes,
        room=np.zeros(len(memory_classes) + 2, np.int64),
        items=np.zeros(longest, np.int64),
        keys=np.zeros((longest + 2) * KEY_WORDS, np.int64),
        key_notes=np.zeros(4 * KEY_WORDS * len(workload), np.int64),
        scratch=np.zeros(_SCRATCH + 4 * longest, np.int64),
        jitter=jitter_factors(disturbances.jitter_cv) if disturbances.jitter_cv else np.ones(1),
        penalties_ppm=penalties_ppm,
        speeds=speeds,
        **arrays,
        **{name: np.zeros(count, np.int64) for names, count in numbers.items() for name in names.split()},
    )
    count_room(state)
    _misjudge(state.jobs, disturbances, rng)
    return state


def _nowhere(num_items: int, num_gpus: int, num_transfers: int, owned: np.ndarray) -> np.ndarray:
    """Return the places of items in the heap, where none is; parts of jobs of groups get theirs when they are there."""
    position = np.zeros(num_items, np.int64)
    position[:num_gpus] = position[num_gpus + num_transfers :] = -1
    position[num_gpus + owned] = -1
    return position


def _misjudge(jobs: Records, disturbances: Disturbances, rng: np.random.Generator) -> None:
    """Draw how long policies take each job to be, at most as long as the clock could count its service.

    Raises
    ------
    InputError
        A job is elastic, whose iterations are not known beforehand.
    """
    if not disturbances.prediction_error:
        return
    if jobs.elastic.any():
        raise InputError("prediction_error is given, and jobs grow and shrink; expected jobs of a fixed size, or 0")
    iteration_ns = np.maximum(jobs.service_ns // jobs.iterations, 1)
    jobs.misjudged_iterations = disturbances.misjudged_iterations(jobs.iterations, MAX_NS // iteration_ns, rng)


def num_large_enough(job: Job, ascending_bytes: np.ndarray) -> int:
    """Return how many of all GPUs, whose memories are given in ascending order, could hold a worker if empty."""
    return len(ascending_bytes) - int(np.searchsorted(ascending_bytes, job.gpu_memory_bytes))


def _penalties_ppm(workload: Workload, interference: InterferenceModel | None) -> tuple[np.ndarray, list[int]]:
    """Return what one kind of job (row) loses to each other on its GPU, and the kind of each job: its model.

    Elastic jobs have their GPUs for themselves, so that theirs does not matter.
    """
    if interference is None:
        return np.zeros((0, 0), np.int64), [0] * len(workload)
    models = Counter(job.model for job in workload if not isinstance(job, ElasticJob))
    if len(models) > _MOST_MODELS:
        raise InputError(f"the workload's jobs have {len(models)} models; interference is for at most {_MOST_MODELS}")
    penalties_ppm = np.zeros((len(models), len(models)), np.int64)
    for (row, model), (column, other) in product(enumerate(models), repeat=2):
        if row != column or models[model] > 1:  # else it never meets its like
            penalties_ppm[row, column] = _penalty_ppm(interference, model, other)
    numbers = {model: number for number, model in enumerate(models)}
    return penalties_ppm, [numbers.get(job.model, 0) for job in workload]


def _speeds(workload: Workload, cluster: Cluster) -> tuple[np.ndarray, list[int]]:
    """Return how fast a model (row) is on a kind of GPU, and the row of each job; nothing without throughputs."""
    if cluster.throughputs is None:
        return np.zeros((0, 0)), [0] * len(workload)
    rows: dict[str | None, int] = {}
    speeds = []
    for number, job in enumerate(workload):
        if job.model not in rows:
            rows[job.model] = len(rows)
            where = f"{workload.where(number)}: job {job.job_id!r}"
            speeds.append([cluster.throughputs.speed(job.model, kind, where) for kind in cluster.kinds])
    return np.array(speeds, np.float64), [rows[job.model] for job in workload]


def _penalty_ppm(interference: InterferenceModel, model: str | None, other: str | None) -> int:
    name = lambda: f"interference {label(interference)}: penalty_share({model!r}, {other!r})"  # noqa: E731
    share = guarded(name, lambda: interference.penalty_share(model, other))
    if not isinstance(share, Real) or isinstance(share, bool) or not 0 <= share <= MAX_PENALTY_SHARE:
        raise PluginError(f"{name()} answered {share!r}; expected a share from 0 to {MAX_PENALTY_SHARE:g}")
    return round(1e6 * float(share))


def _run(
    cluster: Cluster,
    workload: Workload,
    disturbances: Disturbances,
    interference: InterferenceModel | None,
    jitter_seed: int,
) -> Records:
    run = make_records("run", 1)
    run.wake_placement_ns = run.wake_communication_ns = -1
    run.next_capacity_ns = run.pause_ns = run.next_look_ns = NEVER
    run.instant_ns = run.first_due = run.failed_door = -1
    run.num_gpus, run.num_jobs_left = cluster.num_gpus, len(workload)
    run.exclusive = cluster.exclusive
    run.penalised_once = bool(getattr(interference, "once", False))
    run.sample_step_ns = run.next_sample_ns = _FIRST_SAMPLE_NS
    run.checkpoint_iterations = disturbances.checkpoint_iterations
    run.jitter_seed = jitter_seed
    return run


def refuse_misfits(workload: Workload, cluster: Cluster) -> None:
    """Raise InputError for the first job that no moment of the cluster could hold; of elastic ones any GPU has to."""
    ascending_bytes = np.sort(cluster.gpu_memory_bytes)
    smallest_bytes = int(ascending_bytes[0])
    for number, job in enumerate(workload):
        column, fewest = ("min_gpus", job.min_gpus) if isinstance(job, ElasticJob) else ("gpus", job.num_gpus)
        if fewest > cluster.num_gpus:
            raise InputError(
                f"{workload.where(number)}, column {column}: job {job.job_id!r} needs {fewest} GPUs, "
                f"so it can never fit; expected at most the cluster's {cluster.num_gpus}"
            )
        if job.gpu_memory_bytes <= smallest_bytes:
            continue
        enough = num_large_enough(job, ascending_bytes)
        if isinstance(job, ElasticJob):
            where, largest = "any GPU that it may get", f"the {smallest_bytes / 1e6:g} of the smallest"
        elif job.num_gpus > enough:
            where = f"each of {job.num_gpus} GPUs, so it can never fit"
            largest = "the cluster's " + (f"{enough} GPUs with as much" if enough else f"{cluster.gpu_memory_mb:g}")
        else:
            continue
        raise InputError(
            f"{workload.where(number)}, column gpu_memory_mb: job {job.job_id!r} needs {job.gpu_memory_mb:g} MB on "
            f"{where}; expected at most {largest}"
        )


def refuse_levels(workload: Workload, cluster: Cluster, network: Network) -> None:
    """Raise InputError for the first job with a level that there is not, or whose units can never hold its slices."""
    held: dict[tuple[str, int], np.ndarray] = {}
    names = ("required_levels", "preferred_levels")
    for number, job in enumerate(workload):
        demands = [(name, *each) for name in names for each in demands_of(getattr(job, name))]
        demands += [("balanced_level", "", job.balanced_level)] if job.balanced_level else []
        for name, part, level in demands:
            where = f"{workload.where(number)}, column {name}: job {job.job_id!r}"
            try:
                units = network.units(level)
            except UnknownNameError as error:
                raise InputError(f"{where}: {error}") from None
            if name != "required_levels":
                continue
            if (key := (level, job.gpu_memory_bytes)) not in held:
                large_enough = cluster.gpu_memory_bytes >= job.gpu_memory_bytes
                held[key] = np.unique(np.array(units)[cluster.server_of_gpu[large_enough]], return_counts=True)[1]
            sizes = [len(workers) for workers in slices_of(part, job.dag.groups, job.num_gpus)]
            longest = max(sizes)
            wanted, room, most = sizes.count(longest), int((held[key] // longest).sum()), int(held[key].max())
            if wanted > room:
                whole = (size for size in range(most, 1, -1) if job.num_gpus % size == 0)
                fit = next((size for size in whole if (held[key] // size).sum() * size >= job.num_gpus), None)
                others = f", or slices that fit, such as '{fit}:{level}'" if fit else ""
                raise InputError(
                    f"{where} has {job.required_levels!r}, so it can never fit: units of the level {level!r} have room "
                    f"for {room} of its {wanted} slices of {longest} GPUs, the largest with {most}; expected a "
                    f"wider level{others}"
                )


def _group_steps(job: Job) -> int:
    """Return how many compute tasks an iteration of a job of groups has, counted for each worker that runs them."""
    computes = Counter(task.group for task in job.dag.tasks if isinstance(task, ComputeTask))
    sizes = {name: job.num_gpus if name is None else sum(map(len, job.dag.groups[name])) for name in computes}
    return sum(count * sizes[name] for name, count in computes.items())


def _jobs(workload: Workload, moving: bool) -> Records:
    jobs = make_records("job", len(workload))
    write_fields(JobView, jobs, workload.jobs)
    jobs.num_tasks, jobs.num_transfers = np.array([job.dag.num_parts for job in workload], np.int64).T
    jobs.grouped = [is_grouped(job.dag.tasks, job.dag.groups, job.num_gpus) for job in workload]
    jobs.group_steps = [
        _group_steps(job) if grouped else 0 for job, grouped in zip(workload, jobs.grouped, strict=True)
    ]
    jobs.num_tuples = jobs.num_transfers
    jobs.elastic = [isinstance(job, ElasticJob) for job in workload]
    jobs.samples_left = [job.samples if isinstance(job, ElasticJob) else 0 for job in workload]
    jobs.start_iterations_left = jobs.iterations
    jobs.state = JobState.FUTURE
    jobs.start_ns = jobs.finish_ns = -1
    jobs.first_worker = np.cumsum(jobs.num_gpus) - jobs.num_gpus
    own = np.where(jobs.grouped == 1, 0, jobs.num_tasks)
    jobs.first_task = np.cumsum(own) - own
    # Behind a job's all-reduces is room for its state on its way: at most a transfer a GPU.
    transfers = jobs.num_transfers + jobs.num_gpus * moving
    jobs.first_transfer = np.cumsum(transfers) - transfers
    jobs.first_flow = jobs.first_transfer + jobs.num_transfers
    return jobs


def _gpus(cluster: Cluster, slowdowns: np.ndarray) -> Records:
    gpus = make_records("gpu", cluster.num_gpus)
    gpus.server = cluster.server_of_gpu
    gpus.relative_speed = cluster.relative_speed
    gpus.kind = cluster.kind_of_gpu
    gpus.slowness = slowdowns / cluster.relative_speed
    gpus.worker = gpus.open_place = gpus.first_ready = gpus.next_in_group = -1
    gpus.leader, gpus.group_size = np.arange(len(gpus)), 1
    gpus.free_bytes = cluster.gpu_memory_bytes
    return gpus


def _links(network: Network) -> Records:
    links = make_records("link", len(network.links))
    links.leader = np.arange(len(links))
    links.head = links.waiting_head = links.first_filled = -1
    links.relative_bandwidth, links.bandwidth_bytes_per_s = network.links.relative, network.links.bytes_per_s
    return links


def make_covers(num_links: int) -> Records:
    """Return what says which links cover others, with nothing placed."""
    covers = make_records("cover", num_links)
    covers.head = -1
    return covers
