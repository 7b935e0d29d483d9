"""``ddlsched design``: which cluster and which parallelism, of all that are valid."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, notice, status, write_told
from ddlsched.deferred import pd
from ddlsched.errors import InputError, did_you_mean
from ddlsched.io.files import made_folder, refuse_unwritable
from ddlsched.options import Option
from ddlsched.training.estimate_command import MachineOptions

_BY = {"time": "step_s", "cost": "cost", "energy": "energy_j"}


@dataclass(frozen=True, kw_only=True)
class TriedOptions:
    """What to try.

    Parameters
    ----------
    global_batch
        Samples of a step.
    sweep
        Values of an axis, e.g. tensor=1,2,4,8 or memory_bandwidth=0.5,1,2. Axes: tensor, pipeline, micro_batch,
        interleave, expert, zero, sequence_parallel, overlap; factors memory_bandwidth, link_bandwidth,
        network_bandwidth, compute; expansion_gb with expansion_gb_per_s.
    recompute
        What to try of recomputation.
    """

    global_batch: int = 512
    sweep: str | None = option(None, metavar="AXIS=V,...", shown="every tensor, pipeline and micro_batch that divides")
    recompute: str = option("none,selective,full", metavar="WHAT,...")


@dataclass(frozen=True, kw_only=True)
class ShownOptions:
    """What is best, and where it goes.

    Parameters
    ----------
    by
        What is best: least time, cost (at guessed prices unless --cluster gives them) or energy.
    top
        How many configurations to print.
    out
        Write all configurations.
    charts
        Folder for heat maps of the swept axes and the Pareto front of time and cost.
    as_json
        Print the best as a JSON list.
    """

    by: str = option("time", metavar="WHAT")
    top: int = 10
    out: Path | None = option(None, metavar="FILE.csv")
    charts: Path | None = option(None, metavar="DIR")
    as_json: bool = False


def design(
    model: str,
    *,
    host: Annotated[Given[MachineOptions], Panel("Clusters", several=("cluster",))],
    gpus: Annotated[str | None, Option(panel="Clusters", metavar="N,...", shown="the cluster's nodes, else 64")] = None,
    tried: Annotated[Given[TriedOptions], Panel("What to try", several=("sweep",))],
    shown: Annotated[Given[ShownOptions], Panel("Results")],
) -> None:
    """Estimate every valid parallelism on every cluster variant; print the best first.

    A step's time, cost and energy; what does not fit in memory comes last. Prices do not follow swept bandwidths.

    Parameters
    ----------
    model
        Name of a model, e.g. gpt3-175b or llama-3-70b.
    gpus
        Sizes of cluster to try, e.g. 64,128,256.
    """
    wanted = shown.made()
    by, top, out, charts = wanted.by, wanted.top, wanted.out, wanted.charts
    if by not in _BY:
        raise InputError(f"--by {by}: is unknown; expected {', '.join(_BY)}")
    if top < 1:
        raise InputError(f"--top {top}: is no number of configurations; expected a whole number from 1")
    refuse_unwritable(out, "--out")
    if charts is not None:
        made_folder(charts, "--charts")
    sweep = _sweep(tried.values.get("sweep") or [], tried.values["recompute"])
    table = _all(model, host.values, _sizes(gpus), tried.values["global_batch"], sweep)
    table = table.sort_values(["fits", _BY[by]], ascending=[False, True], ignore_index=True, kind="stable")
    if table.empty:
        raise InputError("no combination keeps all rules; expected divisors of the GPUs, layers, heads and batch")
    if out is not None:
        text = table.to_csv(index=False, lineterminator="\n", float_format="%.9g")
        write_told(out, "--out", f"{len(table)} configurations", lambda file: file.write_text(text, encoding="utf-8"))
    if charts is not None:
        for path in _draw(table, charts):
            notice(f"wrote {path}")
    best = table.head(top)
    emit(best.to_json(orient="records", indent=2) + "\n" if wanted.as_json else _text(model, table, best))


def _all(model: str, host: dict[str, Any], sizes: list[int], batch: int, sweep: Any) -> pd.DataFrame:
    """Return every valid configuration on each cluster of each size."""
    from ddlsched.training.estimate.clusters import parse_cluster
    from ddlsched.training.estimate.design_sweep import design as search
    from ddlsched.training.estimate.presets import MODELS, preset

    found_model = preset(MODELS, model, "model")
    names = dict.fromkeys(host.get("cluster") or [MachineOptions.cluster])
    network = {option: value for option, value in host.items() if option != "cluster"}
    plans = [(name, parse_cluster(name, **network)) for name in names]
    tables = []
    with status(f"estimating {len(plans) * max(1, len(sizes))} clusters"):
        for name, plan in plans:
            for count in sizes or [plan.nodes * plan.gpus_per_node or 64]:
                found = search(found_model, plan, num_gpus=count, global_batch=batch, sweep=sweep)
                found.insert(0, "cluster", name)
                found.insert(1, "gpus", count)
                tables.append(found)
    return pd.concat(tables, ignore_index=True)


def _sizes(text: str | None) -> list[int]:
    """Return the sizes to try; none: the cluster's own."""
    if text is None:
        return []
    sizes = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if not all(1 <= size <= 1_000_000 for size in sizes):
        raise InputError(f"--gpus {text}: is no list of sizes; expected whole numbers from 1, such as 64,128,256")
    return list(dict.fromkeys(sizes))


def _sweep(given: list[str], recompute: str) -> Any:
    from ddlsched.training.estimate import RECOMPUTE
    from ddlsched.training.estimate.design_sweep import DesignSweep

    kinds = list(dict.fromkeys(recompute.split(",")))
    for kind in kinds:
        if kind not in RECOMPUTE:
            raise InputError(f"--recompute {recompute}: {kind!r} is unknown; expected some of {', '.join(RECOMPUTE)}")
    axes: dict[str, list[float]] = {}
    for text in given:
        name, values = _axis(text)
        if name in axes:
            raise InputError(f"--sweep {text}: {name} was given before; expected all its values at once")
        axes[name] = values
    return DesignSweep(axes=axes, recompute=kinds)  # type: ignore[arg-type]


_FROM_ZERO = {"zero": 3, "sequence_parallel": 1, "overlap": 1}
"""Axes whose values begin with 0, and their last one."""


def _axis(text: str) -> tuple[str, list[float]]:
    from ddlsched.training.estimate.design_sweep import CLUSTER_AXES, PLAN_AXES

    name, equals, values = text.partition("=")
    if name not in (*PLAN_AXES, *CLUSTER_AXES):
        raise InputError(f"--sweep {text}: {name!r} is no axis.{did_you_mean(name, (*PLAN_AXES, *CLUSTER_AXES))}")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    least = 0 if name in _FROM_ZERO else 1 if name in PLAN_AXES else 1e-9
    most = _FROM_ZERO.get(name, 1e12)
    good = equals and numbers and all(least <= number <= most for number in numbers)
    if not good or (name in PLAN_AXES and any(number % 1 for number in numbers)):
        kind = "whole numbers" if name in PLAN_AXES else "numbers > 0"
        bounds = f" from 0 to {most}, such as {name}=0,1" if name in _FROM_ZERO else f", such as {name}=1,2"
        raise InputError(f"--sweep {text}: has no usable values; expected {kind}{bounds}")
    return name, list(dict.fromkeys(numbers))


def _text(model: str, table: pd.DataFrame, shown: pd.DataFrame) -> str:
    """Return the best configurations as a table; columns in which all configurations are alike are left out."""
    fitting = int(table["fits"].sum())
    alike = [name for name in table if name not in _ALWAYS and table[name].nunique() == 1]
    shown = shown.drop(columns=[*alike, "missing_gb"])
    formats = {"step_s": "{:.4g}", "mfu": "{:.3f}", "memory_gb": "{:.1f}", "energy_j": "{:.4g}", "cost": "{:.4g}"}
    for name, form in formats.items():
        shown[name] = shown[name].map(form.format)
    head = f"{model}: {len(table):,} valid configurations, {fitting:,} of them fit\n"
    return head + shown.to_string(index=False) + "\n"


_RESULTS = ("step_s", "mfu", "memory_gb", "missing_gb", "fits", "energy_j", "cost")
_ALWAYS = ("gpus", "tensor", "pipeline", "data", "micro_batch", *_RESULTS)

_AXIS_TITLES = {
    "tensor": "Tensor parallelism",
    "pipeline": "Pipeline stages",
    "data": "Data parallelism",
    "micro_batch": "Micro-batch",
    "memory_bandwidth": "Memory bandwidth (factor)",
    "link_bandwidth": "Bandwidth in a node (factor)",
    "network_bandwidth": "Network bandwidth (factor)",
    "compute": "Peak FLOP/s (factor)",
    "expansion_gb": "Memory expansion (GB)",
    "expansion_gb_per_s": "Expansion bandwidth (GB/s)",
    "gpus": "GPUs",
}
_MOST_CELLS = 24


def _draw(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw a heat map of each pair of cluster axes that vary, one of tensor x data, and the Pareto front."""
    from ddlsched.comparisons.charts.style import save
    from ddlsched.comparisons.charts.training_charts import heat_map, pareto_chart
    from ddlsched.training.estimate.design_sweep import CLUSTER_AXES, best_of, pareto_front

    if not table["fits"].any():
        raise InputError("--charts: no configuration fits in memory; expected at least one to draw")
    varied = [name for name in ("gpus", *CLUSTER_AXES) if name in table and 1 < table[name].nunique() <= _MOST_CELLS]
    paths: list[Path] = []
    for rows, columns in [("tensor", "data"), ("tensor", "pipeline"), *combinations(varied, 2)]:
        cells = best_of(table, rows, columns)
        figure = heat_map(
            cells.to_numpy(),
            rows=[f"{value:g}" for value in cells.index],
            columns=[f"{value:g}" for value in cells.columns],
            row_axis=_AXIS_TITLES[rows],
            column_axis=_AXIS_TITLES[columns],
            title="Shortest step (s); -: nothing fits" if cells.isna().any(axis=None) else "Shortest step (s)",
        )
        paths += save(figure, folder / f"{rows}_{columns}")
    fitting = table[table["fits"]]
    times, costs = fitting["step_s"].to_numpy(), fitting["cost"].to_numpy()
    names = (fitting["gpus"].astype(str) + " GPUs, " + fitting["cluster"]).tolist()
    figure = pareto_chart(
        times, costs, pareto_front(times, costs), names=names, time_axis="Step (s)", cost_axis="Cost of a step ($)"
    )
    return [*paths, *save(figure, folder / "pareto_time_cost")]
