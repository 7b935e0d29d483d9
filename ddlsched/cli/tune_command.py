"""``ddlsched tune``: the fields of policies, searched on some seeds and checked on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit, json_text, notice
from ddlsched.cli.run_arguments import refuse_ineffective, run_arguments
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError
from ddlsched.options import Option

if TYPE_CHECKING:
    from ddlsched.comparisons.tuning import Tuned

_RUNS = "The runs"
_TUNED = ("placement", "order", "communication", "allocation", "path", "admission")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What is searched for, on which seeds, and where it is kept.

    Parameters
    ----------
    vary
        A field and its values, e.g. placement.kappa=1:32 or communication.by=bytes,service.
    metric
        Column of runs.csv to improve.
    trials
        Sets of values tried in all.
    seeds
        On which values are chosen.
    held_out
        On which the choice is checked.
    out
        Folder of the search; the same command again goes on where it was.
    processes
        Runs at once.
    as_json
        Print what was found as one JSON object.
    """

    vary: Sequence[str] = option(
        (),
        metavar="DOOR.FIELD=LOW:HIGH",
        shown="every number, from a quarter to four times its default, and every truth value",
    )
    metric: str = "average_jct_s"
    trials: int = 40
    seeds: str = option("1-6", metavar="SEEDS")
    held_out: str = option("101-112", metavar="SEEDS")
    out: Path = option(Path("tuning"), metavar="DIR")
    processes: int = option(-1, shown="one a core")
    as_json: bool = False


def tune(
    context: typer.Context,
    workload: Annotated[str, Option(metavar="JOBS")],
    *,
    tuned: Annotated[Given[RunOptions], Panel("Policies to tune", only=_TUNED, shown=dict.fromkeys(_TUNED, "none"))],
    options: Annotated[
        Given[RunOptions], Panel(_RUNS, without=(*_TUNED, "scheduler", "seed", "replay"), only_given=True)
    ],
    disturbances: Annotated[Given[Disturbances], Panel(_RUNS, metavars={"outages": "FILE.csv"}, only_given=True)],
    search: Annotated[Given[SearchOptions], Panel(several=("vary",))],
) -> None:
    r"""Search the fields of policies for a better metric on some seeds, and check the best on others.

    Ends with the flags of the best and a warning where the gain is not there on the held-out seeds.

    Needs pip install 'ddlsched\[tune]'.

    Parameters
    ----------
    workload
        A generator whose jobs the seed makes, e.g. microsoft-160:scale=0.01.
    """
    from ddlsched.comparisons.fields import seeds_of
    from ddlsched.comparisons.tuning import tune as searched
    from ddlsched.io.progress import progress_bar

    refuse_ineffective(context)
    if not tuned.values:
        raise InputError(
            f"no policy to tune; expected {', '.join(f'--{door}' for door in _TUNED[:-1])} or --{_TUNED[-1]}"
        )
    asked = search.made()
    with progress_bar("trials") as tell:
        found = searched(
            workload,
            tuned.values,
            ranges=asked.vary,
            metric=asked.metric,
            trials=asked.trials,
            seeds=seeds_of(asked.seeds, "--seeds"),
            held_out=seeds_of(asked.held_out, "--held-out"),
            options=run_arguments(options.values, disturbances.values),
            folder=asked.out,
            processes=asked.processes,
            watch=lambda done, total: tell(done, total, None),
        )
    emit(_json(found) if asked.as_json else _text(found, asked.metric))
    if found.warning:
        notice(found.warning)


def _text(found: Tuned, metric: str) -> str:
    flags = " ".join(f"--{door} {text}" for door, text in found.policies.items())
    lines = [flags, f"{metric} on the tuning seeds: {100 * found.tuning_change:+.1f} % against the untuned"]
    interval = ""
    if found.held_out_interval is not None:
        low, high = found.held_out_interval
        interval = f" [{100 * low:+.1f}, {100 * high:+.1f}]"
    lines.append(f"{metric} on the held-out seeds: {100 * found.held_out_change:+.1f} %{interval}")
    return "".join(f"{line}\n" for line in lines)


def _json(found: Tuned) -> str:
    names = ("policies", "values", "tuning_change", "held_out_change", "held_out_interval", "warning")
    return json_text({name: getattr(found, name) for name in names})
