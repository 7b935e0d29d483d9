"""MonkeyTree's own simulator beside this one, on a trace that both read.

    python tests/rivals/monkeytree_trace.py                 what is kept of its runs, beside runs of ours
    python tests/rivals/monkeytree_trace.py --write DIR     the trace and its jobs, as its simulator reads them
    python tests/rivals/monkeytree_trace.py --logs perfect=a.log perfect=b.log     logs of new runs of its own

Its simulator is hipersys-team/MonkeyTree @ 536f589. In ``DIR``, where ``--write`` put the trace, it is run as
``golden_spine s0.trace SYSTEM 0 8 0 16 1024 0 DELAY_US 64 > LOG``, with SYSTEM perfect, crux or monkeytree_perfect.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import ddlsched
from algorithms.ordering.monkeytree import MonkeyTreeOrder
from algorithms.placement.monkeytree import MonkeyTreePlacement
from ddlsched import Disturbances
from ddlsched.cli.reporting import reported
from ddlsched.errors import InputError
from ddlsched.workload.generators.monkeytree_mix import MODELS, MixedModel, monkeytree_mix

KEPT = Path(__file__).parent / "expected" / "monkeytree_its_runs.csv"
SAME_S = 0.01
"""Times no farther apart are the same."""
MODEL = {model.name: model for model in MODELS}
_ENDED = re.compile(r"\d+ JobComplete (\d+) submit=\d+ schedule=(\d+) complete=(\d+)")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A run of ours: its path policy, whether jobs move, and what a move costs beyond the bytes."""

    path: str
    moves: bool = False
    restart_s: float = 0.0


VARIANTS = {
    "perfect": {"perfect": Variant(path="perfect")},
    "crux": {
        "crux:paths-only": Variant(path="crux"),
        "crux:paths-only, intensity=sum": Variant(path="crux:intensity=sum"),
        "crux:paths-only, intensity=sum, anew": Variant(path="crux:intensity=sum,anew=True"),
    },
    "monkeytree, 1 us a move": {"monkeytree": Variant(path="perfect", moves=True)},
    "monkeytree, 10 s a move": {"monkeytree, 10 s a move": Variant(path="perfect", moves=True, restart_s=10.0)},
}
"""By run of its simulator those of ours that are set beside it."""


def jobs() -> ddlsched.Workload:
    """Return the trace: of 300 jobs of seed 0 those of one pipeline stage, whose tasks both model alike."""
    made = monkeytree_mix(seed=0, jobs=300, load=1.0, scale=0.1)
    return ddlsched.Workload.of([job for job in made if MODEL[str(job.model)].stages == 1])


def written(workload: ddlsched.Workload, folder: Path) -> None:
    """Write the trace, and a file a model, as its simulator reads them."""
    (folder / "jobs").mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        (folder / "jobs" / f"{model.name}.yaml").write_text(_its_job(model))
    lines = [f"{round(job.arrival_s * 1e6)} {job.model} {job.num_gpus} {job.iterations}" for job in workload]
    (folder / "s0.trace").write_text("\n".join([str(len(lines)), *lines]) + "\n")


def _its_job(model: MixedModel) -> str:
    sent = int(model.message_bytes)
    ring = "all_reduce: {}" if model.rings == 1 else f"strided_ring:\n      stride: 8\n      model_size_bytes: {sent}"
    compute = f"compute:\n      duration_us: {round(model.compute_s * 1e6)}"
    return f'name: "{model.name}"\nmodel_size_bytes: {sent}\nsteps:\n  - {compute}\n  - {ring}\n'


def read_log(file: Path, count: int) -> pd.DataFrame:
    """Return start and end of each job, seconds, in the order of the trace.

    Raises
    ------
    InputError
        Some job did not end.
    """
    ended = [tuple(int(value) for value in found.groups()) for found in _ENDED.finditer(file.read_text())]
    if sorted(job for job, _, _ in ended) != list(range(count)):
        raise InputError(f"{file}: {len(ended)} jobs have ended; expected all {count} of the trace")
    return pd.DataFrame(sorted(ended), columns=["job", "start_s", "end_s"]).assign(
        start_s=lambda rows: rows["start_s"] / 1e6, end_s=lambda rows: rows["end_s"] / 1e6
    )


def read_logs(given: list[str], count: int) -> pd.DataFrame:
    """Return the runs of some logs, each ``RUN=FILE``, numbered where a run was made several times."""
    tables, times = [], dict[str, int]()
    for text in given:
        run, _, file = text.partition("=")
        if run not in VARIANTS or not Path(file).is_file():
            raise InputError(
                f"--logs: {text!r} is no run and log; expected RUN=FILE, with RUN one of {', '.join(VARIANTS)}"
            )
        times[run] = times.get(run, 0) + 1
        tables.append(read_log(Path(file), count).assign(run=run, repeat=times[run]))
    return pd.concat(tables, ignore_index=True)[["run", "repeat", "job", "start_s", "end_s"]]


def ours(workload: ddlsched.Workload, variant: Variant) -> pd.DataFrame:
    """Return start and end of each job, seconds."""
    found = ddlsched.simulate(
        workload,
        ddlsched.Cluster(
            num_servers=1024, gpus_per_server=1, topology="monkeytree:servers_per_rack=64", exclusive=True
        ),
        placement=MonkeyTreePlacement(moves_jobs=variant.moves, time_limit_s=60.0),
        order=MonkeyTreeOrder(time_limit_s=60.0) if variant.moves else "fifo",
        communication="bounded-overlap:limit=100000",
        contention="max-min",
        path=variant.path,
        disturbances=Disturbances(restart_s=variant.restart_s),
        seed=0,
    ).jobs
    return pd.DataFrame({"start_s": found["arrival_s"] + found["queueing_s"], "end_s": found["finish_s"]})


def slowdowns(workload: ddlsched.Workload, run: pd.DataFrame) -> np.ndarray:
    """Return each job's time on its GPUs over what it takes there alone, without the first third."""
    alone_s = [MODEL[str(job.model)].alone_s(job.num_gpus) * job.iterations for job in workload]
    return ((run["end_s"] - run["start_s"]).to_numpy() / np.array(alone_s))[len(workload) // 3 :]


def first_that_differs(its: pd.DataFrame, here: pd.DataFrame) -> dict[str, float]:
    """Return of the first job to arrive that starts at another time, or takes another, its start and both times.

    ``jobs_alike`` are those before it: each starts at the same time in both and takes the same.
    """
    rows = pd.DataFrame({"start_s": here["start_s"], "its_start_s": its["start_s"].to_numpy()})
    rows["ran_s"], rows["its_ran_s"] = here["end_s"] - here["start_s"], (its["end_s"] - its["start_s"]).to_numpy()
    apart_s = np.maximum((rows["start_s"] - rows["its_start_s"]).abs(), (rows["ran_s"] - rows["its_ran_s"]).abs())
    if (apart_s <= SAME_S).all():
        return {"jobs_alike": len(rows)}
    place = int((apart_s > SAME_S).to_numpy().argmax())
    first = rows.loc[place, ["ran_s", "its_ran_s"]]
    return {"jobs_alike": place, "first_differs_at_s": rows.loc[place, "its_start_s"]} | dict(first)


def compared(workload: ddlsched.Workload, its: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each run of its simulator and each of ours beside it."""
    rows, made = [], dict[str, pd.DataFrame]()
    for (run, repeat), there in its.groupby(["run", "repeat"], sort=False):
        for name, variant in VARIANTS[run].items():
            if name not in made:
                made[name] = ours(workload, variant)
            rows.append({"its_run": run, "repeat": repeat, "ours": name})
            for prefix, table in (("its_", there.reset_index()), ("", made[name])):
                slower = slowdowns(workload, table)
                rows[-1] |= {f"{prefix}slowdown": slower.mean(), f"{prefix}p99": np.quantile(slower, 0.99)}
            rows[-1] |= first_that_differs(there, made[name])
    return pd.DataFrame(rows)


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, default=None, metavar="DIR")
    parser.add_argument("--logs", nargs="*", default=[], metavar="RUN=FILE")
    parser.add_argument("--keep", type=Path, default=Path("results/rivals/monkeytree_its_runs.csv"), metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("results/rivals/monkeytree_trace.csv"), metavar="FILE")
    given, workload = parser.parse_args(), jobs()
    if given.write:
        written(workload, given.write)
        return
    its = read_logs(given.logs, len(workload)) if given.logs else pd.read_csv(KEPT)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if given.logs:
        its.to_csv(given.keep, index=False, lineterminator="\n")
    table = compared(workload, its)
    print(table.to_string(index=False, float_format="{:,.3f}".format))
    table.to_csv(given.out, index=False, float_format="%.6g", lineterminator="\n")


if __name__ == "__main__":
    with reported():
        main()
