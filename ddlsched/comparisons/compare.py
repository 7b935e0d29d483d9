"""From what is asked to a finished comparison.

The runs of a comparison: every policy on every workload, cluster and seed, and what tables call them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import yaml

from ddlsched.cluster.cluster import Cluster
from ddlsched.cluster.cluster_files import read_cluster, tenants_of, throughputs_of
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.comparisons.comparison import Comparison, begin, finish
from ddlsched.comparisons.settings import Location, Settings, Where, checked_settings, text_of
from ddlsched.comparisons.sweeps.run import Run, under_way
from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.engine.run_options import RunOptions
from ddlsched.engine.run_progress import long_run_remark
from ddlsched.errors import DdlschedError, InputError, guarded, says_unknown_arguments
from ddlsched.io.progress import progress_bar
from ddlsched.io.tables import located
from ddlsched.network.contention import card_remark
from ddlsched.options import declared
from ddlsched.plugins import DEFAULT_CONTENTION
from ddlsched.plugins.names import Kind, resolve
from ddlsched.simulation import network_of, simulate
from ddlsched.workload.dag import DataParallelIteration
from ddlsched.workload.elastic_job import ElasticJob
from ddlsched.workload.job import Job, Workload
from ddlsched.workload.workload_files import draws_from_seed, is_generator, workload_of


@dataclass(frozen=True)
class ComparedCluster:
    """A cluster, what its servers are called, and the contention on its links."""

    name: str
    cluster: Cluster
    contention: Any

    def __str__(self) -> str:
        cluster = self.cluster
        parts = ["exclusive"] if cluster.exclusive else []
        if cluster.topology != Cluster.topology:
            parts.append(text_of(cluster.topology))
        if self.contention != DEFAULT_CONTENTION:
            parts.append(text_of(self.contention))
        return " ".join([self.name, *parts])


@dataclass(frozen=True)
class ComparisonPlan:
    """Everything that is compared, by what tables call it."""

    settings: Settings

    @cached_property
    def policies(self) -> dict[str, dict[str, Any]]:
        """Placement, order, communication and perhaps allocation of each policy."""
        return self.settings.named_policies

    @cached_property
    def workloads(self) -> dict[str, str]:
        """The text of each workload: of a file, tables say the stem, unless two files share it."""
        texts = self.settings.workloads
        stems = {text: text if is_generator(text) else Path(text).stem for text in texts}
        once = [stem for stem in stems.values() if list(stems.values()).count(stem) == 1]
        return {stem if stem in once else text: text for text, stem in stems.items()}

    @cached_property
    def places(self) -> dict[str, ComparedCluster]:
        """The clusters, each with each contention model."""
        settings = self.settings
        choices = product(self._servers.items(), settings.topology, settings.contention)
        places = [
            ComparedCluster(name, replace(cluster, topology=net), model) for (name, cluster), net, model in choices
        ]
        return {str(place): place for place in places}

    @cached_property
    def _servers(self) -> dict[str, Cluster]:
        """Clusters, whatever their network: by the stem of their file (the file, if two share it), or by size."""
        settings, per_server = self.settings, self.settings.gpus_per_server
        if settings.server_table:
            stems = Counter(Path(table).stem for table in settings.server_table)
            names = {t: Path(t).stem if stems[Path(t).stem] == 1 else t for t in settings.server_table}
            clusters = {name: read_cluster(table, exclusive=settings.exclusive) for table, name in names.items()}
            speeds = throughputs_of(settings.throughputs, settings.reference_kind)
            return {name: replace(cluster, throughputs=speeds) for name, cluster in clusters.items()}
        memory_mb, exclusive = settings.gpu_memory_mb, settings.exclusive
        equal = Cluster(gpus_per_server=per_server, gpu_memory_mb=memory_mb, exclusive=exclusive)
        return {f"{count}x{per_server}": replace(equal, num_servers=count) for count in settings.servers}

    @property
    def baseline(self) -> str:
        """The policy that the others are compared with."""
        return self.settings.baseline or next(iter(self.policies))

    def runs(self) -> list[Run]:
        """Return the runs, seed by seed, so that a comparison that is stopped has compared something.

        Where neither the jobs nor any policy draw random numbers, the first seed's runs are all there is. A workload
        that has draws has these in place of the seeds, numbered as the seeds 1, 2, ... are.
        """
        seeds, drawn = self.settings.seeds, self.drawn_workloads
        return [
            self._run(policy, workload, name, seed, chance[policy])
            for seed in dict.fromkeys([*seeds, *(range(1, self.settings.draws + 1) if drawn else ())])
            for workload, name in product(self.workloads, self.places)
            for chance in [self._chance(workload)]
            if (seed <= self.settings.draws if workload in drawn else seed in seeds)
            if any(chance.values()) or workload in drawn or seed == seeds[0]
            for policy in self.policies
        ]

    @cached_property
    def drawn_workloads(self) -> list[str]:
        """The workloads of which draws run: those whose jobs no seed makes, if more than one draw is asked for."""
        if self.settings.draws == 1:
            return []
        return [name for name in self.workloads if not draws_from_seed(self.workloads[name])]

    @cached_property
    def task_ends(self) -> dict[str, int]:
        """How often tasks and transfers end in a run of each workload, with the first seed."""
        return {name: self._jobs_of[name].task_ends for name in self.workloads}

    @cached_property
    def _jobs_of(self) -> dict[str, Workload]:
        return {name: workload_of(text, self.settings.seeds[0]) for name, text in self.workloads.items()}

    def _run(self, policy: str, workload: str, name: str, seed: int, seeded: bool) -> Run:
        place, settings = self.places[name], self.settings
        drawn = workload in self.drawn_workloads
        first_seed = 1 if drawn else settings.seeds[0]
        first = (workload, name, seed) == (next(iter(self.workloads)), next(iter(self.places)), first_seed)
        options = self.policies[policy] | {"cluster": place.cluster, "contention": place.contention}
        options |= {"draw": seed - 1} if drawn else {}
        return Run(
            labels={"policy": policy, "workload": workload, "cluster": name},
            workload=self.workloads[workload],
            seed=seed,
            seeded=seeded,
            options=options | settings.given_options,
            placements=first,
            window=settings.timeline if first else None,
        )

    def _chance(self, workload: str) -> dict[str, bool]:
        """Return of each policy whether its runs on a workload differ from seed to seed."""
        given = self.settings.given_options
        disturbances = given.get("disturbances") or Disturbances()
        may_draw = {name for name, option in declared(RunOptions).items() if option.draws}
        drawn = disturbances.draws or bool(given.keys() & may_draw - {"disturbances"})
        jobs_differ = drawn or draws_from_seed(self.workloads[workload])
        return {policy: jobs_differ or draws for policy, draws in self._draws.items()}

    @cached_property
    def _draws(self) -> dict[str, bool]:
        return {
            policy: any(_may_draw(resolve(cast(Kind, door), plugin)) for door, plugin in doors.items())
            for policy, doors in self.policies.items()
        }

    def try_out(self, where: Where) -> None:
        """Simulate a job of a second in each place, so that what cannot be simulated is known before it is many times.

        Raises
        ------
        InputError
            Elastic jobs without an allocation policy, or the other way round; a topology that does not fit a cluster;
            an option out of range.
        """
        self._match_allocations(where)
        located(where(("throughputs",)), self._match_throughputs)
        options = self.settings.given_options
        tenants = located(where(("options", "queues")), lambda: tenants_of(options.get("queues")))
        queue = next(iter(tenants.leaves)) if tenants else None
        for place in self.places.values():
            tried = partial(_refusal, Workload.of([replace(_job_of_a_second(place.cluster), queue=queue)]), place)
            refusal = tried(options)
            if refusal is not None:
                faulty = [name for name in options if tried({name: options[name]}) is not None]
                raise InputError(f"{where(('options', faulty[0]) if len(faulty) == 1 else ())}: {refusal}")

    def _match_throughputs(self) -> None:
        """Refuse a job whose model lacks a throughput on a kind of a cluster's GPUs."""
        for jobs, cluster in product(self._jobs_of.values(), self._servers.values()):
            cluster.refuse_without_throughput((jobs.where(n), job.job_id, job.model) for n, job in enumerate(jobs))

    def _match_allocations(self, where: Where) -> None:
        missing = "has no allocation, which elastic jobs need; expected one (allocation:, or --allocation)"
        void = "has an allocation, but none of the jobs is elastic; expected a policy without one"
        for name in self.workloads:
            elastic = any(isinstance(job, ElasticJob) for job in self._jobs_of[name])
            for policy, doors in self.policies.items():
                if elastic != ("allocation" in doors):
                    what = f"policy {policy!r} on workload {name!r}: {missing if elastic else void}"
                    raise InputError(f"{where(('policies',))}: {what}")

    def described(self) -> dict[str, Any]:
        """Return everything as JSON can hold it; with the same ddlsched and files it gives the same runs."""
        settings = self.settings
        return {
            "ddlsched": version("ddlsched"),
            "policies": {name: {door: text_of(one) for door, one in of.items()} for name, of in self.policies.items()},
            "workloads": self.workloads,
            "seeds": settings.seeds,
            "draws": settings.draws,
            "drawn_workloads": self.drawn_workloads,
            "clusters": {name: _described_place(place) for name, place in self.places.items()},
            "contention": [text_of(model) for model in settings.contention],
            "options": settings.options.model_dump(mode="json", exclude_unset=True),
            "baseline": self.baseline,
            "timeline": settings.timeline,
        }

    def as_yaml(self) -> str | None:
        """Return a YAML file that asks for the same; None if a plug-in was given as an instance."""
        settings = self.settings
        policies = [plugin for doors in self.policies.values() for plugin in doors.values()]
        if not all(isinstance(plugin, str) for plugin in [*settings.topology, *settings.contention, *policies]):
            return None
        equal = ("servers", "gpus_per_server", "gpu_memory_mb")
        kinds = ("throughputs", "reference_kind") if settings.throughputs else ()
        servers = ("server_table", *kinds) if settings.server_table else equal
        networks = ("exclusive", "topology", "contention")
        fields = {name: getattr(settings, name) for name in ("workloads", "seeds", "draws", *servers, *networks)}
        fields |= {"policies": [{"name": name} | doors for name, doors in self.policies.items()]}
        fields |= {"baseline": self.baseline, "options": self.described()["options"]}
        fields |= {"timeline": list(settings.timeline)} if settings.timeline else {}
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _job_of_a_second(cluster: Cluster) -> Job:
    """Return a job that fits anywhere, of a model that has a throughput on all of the cluster's kinds of GPUs."""
    iteration = DataParallelIteration(forward_s=0.5, backward_s=0.5, message_bytes=1.0)
    model = next(iter(cluster.models_on_all_kinds), None)
    return Job(
        job_id="a", arrival_s=0.0, num_gpus=1, iterations=1, iteration=iteration, gpu_memory_mb=1e-6, model=model
    )


def _refusal(workload: Workload, place: ComparedCluster, options: Mapping[str, Any]) -> InputError | None:
    """Return why a run is refused, if it is; a plug-in's own fault is for the runs that it has to show."""
    try:
        simulate(workload, place.cluster, contention=place.contention, **options)
    except InputError as error:
        return error
    except DdlschedError:
        pass
    return None


def _described_place(place: ComparedCluster) -> dict[str, Any]:
    cluster, inside, remark = place.cluster, None, None
    with suppress(DdlschedError):  # a plug-in's own fault is for the runs to show
        network = network_of(cluster)
        inside = network.inside
        model = resolve("contention", place.contention)
        remark = card_remark(guarded("contention: bound_to", lambda: model.bound_to(network)), network)
    return {
        "num_servers": cluster.num_servers,
        "gpus_per_server": cluster.gpus_per_server,
        "gpu_memory_mb": cluster.gpu_memory_mb,
        "gpus": np.diff(cluster.first_gpus).tolist(),
        "exclusive": cluster.exclusive,
        **_described_kinds(cluster),
        "topology": text_of(cluster.topology),
        "contention": text_of(place.contention),
        "remark": remark,
        **({"inside": {"gpu_gbps": inside.gpu_gbps, "cards": inside.cards}} if inside else {}),
    }


def _described_kinds(cluster: Cluster) -> dict[str, Any]:
    """Return how many GPUs there are of each kind and whose throughputs they have; nothing without a table."""
    if cluster.throughputs is None:
        return {}
    counts = np.bincount(cluster.kind_of_gpu).tolist()
    told = {"source": cluster.throughputs.source, "reference_kind": cluster.throughputs.reference_kind}
    return {"gpu_kinds": dict(zip(cluster.kinds, counts, strict=True)), "throughputs": told}


def _may_draw(policy: object) -> bool:
    """Return whether a policy is given a random generator; whether it uses it, nobody knows beforehand."""
    return any(inspect.getattr_static(policy, name, None) is not None for name in ("begin", "__getattr__"))


@says_unknown_arguments
def compare(
    workloads: str | Path | Sequence[str | Path],
    policies: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
    *,
    seeds: int | str | Sequence[int] = 20,
    draws: int = 1,
    servers: int | Sequence[int] | None = None,
    gpus_per_server: int | None = None,
    gpu_memory_mb: float | None = None,
    server_table: str | Path | Sequence[str | Path] | None = None,
    throughputs: str | Path | None = None,
    reference_kind: str | None = None,
    exclusive: bool = Cluster.exclusive,
    topology: Any = Cluster.topology,
    contention: Any = DEFAULT_CONTENTION,
    baseline: str | None = None,
    options: Mapping[str, Any] | None = None,
    timeline: tuple[float, float] | None = None,
    folder: str | Path = "comparison",
    processes: int = -1,
    dask: str | None = None,
) -> Comparison:
    """Simulate every policy on every workload, cluster and seed, and compare them; finished runs are kept.

    A run that raises is reported in ``Comparison.failures`` and does not stop the others. The same call, after
    whatever stopped it, simulates what is missing.

    Parameters
    ----------
    workloads
        Files, or generators such as ``"microsoft-160:scale=0.01"`` or ``"gen.py:function:parameter=1"``, whose
        jobs the seed makes.
    policies
        Names of bundles; or mappings of ``scheduler`` (a bundle), ``placement``, ``order``, ``communication``
        (each replaces the bundle's; lists give all combinations), ``allocation`` (for workloads of elastic jobs; by
        default none), ``path`` (by default the topology's routes) and ``name`` (for tables).
    seeds
        A list; a number N for 1 to N; or a text such as ``"0-19"`` or ``"1,5,9"``.
    draws
        How many runs of a workload that the seed does not make, such as a trace, take the place of the seeds: their
        jobs' lengths differ by at most 0.1 %, or one iteration (docs/statistics.md).
    servers, gpus_per_server, gpu_memory_mb, topology
        The clusters: one for each number of servers and each topology; by default 16 servers of 4 GPUs of 32,768 MB.
    server_table
        Files of :func:`ddlsched.read_cluster` for servers that differ, a cluster each, in place of the first three.
    throughputs, reference_kind
        A file of :func:`ddlsched.cluster.cluster_files.read_throughputs` for the kinds of GPUs of ``server_table``,
        and the kind on which jobs take the times that the workload says.
    contention
        One model, or several, with each of which everything is simulated.
    exclusive
        Whether a GPU has one job at a time.
    baseline
        Name of the policy that the others are compared with; by default the first.
    options
        Further arguments of :func:`ddlsched.simulate`, the same for all runs.
    timeline
        Record this part, (from, to) in seconds, of each policy's first run.
    folder
        Where runs and tables are written. Another comparison's finished runs there are used where they fit.
    processes
        How many runs at once on this machine; -1 for one a core.
    dask
        Address of a Dask scheduler, such as ``"tcp://127.0.0.1:8786"``, whose workers are to run instead.

    Raises
    ------
    InputError
        Something that is asked for cannot be; the message has all faults.
    PluginError
        A file of the user's cannot be imported.

    Examples
    --------
    >>> from ddlsched import compare
    >>> comparison = compare("microsoft-160:scale=0.001", ["ada-srsf", "srsf-1"], seeds=2, processes=1)
    >>> comparison
    <comparison: 4 runs of 2 policies in comparison>
    >>> comparison.baseline
    'ada-srsf'
    >>> table = comparison.table()
    >>> table.loc[table["metric"] == "average_jct_s", ["policy", "seeds"]].to_dict("records")
    [{'policy': 'ada-srsf', 'seeds': 2}, {'policy': 'srsf-1', 'seeds': 2}]
    """
    asked = {name: value for name, value in locals().items() if name not in ("folder", "processes", "dask")}
    given = {name: value for name, value in asked.items() if value is not None}
    plan = planned(given, _argument)
    return carry_out(plan, Path(folder), processes=processes, dask=dask)


def _argument(location: Location) -> str:
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return f"compare: {field[1:]}" if field else "compare"


def planned(given: Mapping[str, Any], where: Where) -> ComparisonPlan:
    """Return a plan of what is asked, checked as far as can be without simulating it.

    Raises
    ------
    InputError, PluginError
        As :func:`compare`.
    """
    plan = ComparisonPlan(checked_settings(given, where))
    plan.try_out(where)
    return plan


def carry_out(
    plan: ComparisonPlan,
    folder: Path,
    *,
    command: Sequence[str] | None = None,
    processes: int = -1,
    dask: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Simulate what the folder does not hold yet, write its tables, and return the comparison.

    Parameters
    ----------
    plan
        What is compared.
    folder
        Where; see :func:`compare`.
    command
        The command line that asked for it; by default one that asks for the same.
    processes, dask
        As :func:`compare`.
    say
        Is told what the user should know before.
    """
    asked = plan.described() | {"command": list(command or _command(folder)), "working_folder": str(Path.cwd())}
    if begin(folder, asked, plan.as_yaml()):
        say(f"{folder} held another comparison; its tables are replaced, and its runs used where they fit")
    runs = plan.runs()
    say(f"{len(runs)} runs: {_sizes(asked)}")
    for name, ends in plan.task_ends.items():
        if remark := long_run_remark(ends):
            say(f"{name}: {remark}")
    with TemporaryDirectory() as progress, progress_bar("simulating", lambda: under_way(Path(progress))) as watch:
        done = sweep(runs, folder / "runs", processes=processes, dask=dask, watch=watch, progress=Path(progress))
    comparison = Comparison(folder, asked)
    finish(comparison, done)
    return comparison


def _command(folder: Path) -> list[str]:
    return ["ddlsched", "compare", "--config", str(folder / "compare.yaml"), "--out", str(folder)]


def _sizes(asked: Mapping[str, Any]) -> str:
    names = {"policies": "policy", "workloads": "workload", "clusters": "cluster", "seeds": "seed"}
    counts = {name: len(asked[name]) for name in names}
    return " x ".join(f"{count} {names[name] if count == 1 else name}" for name, count in counts.items())
