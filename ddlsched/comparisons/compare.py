"""From what is asked to a finished comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.comparisons.comparison import Comparison, begin, finish
from ddlsched.comparisons.run_plan import ComparisonPlan
from ddlsched.comparisons.settings import Location, Where, checked_settings
from ddlsched.comparisons.sweeps.run import under_way
from ddlsched.comparisons.sweeps.sweep import sweep
from ddlsched.engine.run_progress import long_run_remark
from ddlsched.errors import says_unknown_arguments
from ddlsched.io.progress import progress_bar
from ddlsched.plugins import DEFAULT_CONTENTION


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
