"""``ddlsched tune``: the fields of policies, searched on some seeds and checked on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlsched.cli.dataclass_options import Given, Panel, with_options
from ddlsched.cli.option_values import whole
from ddlsched.cli.output import emit, notice
from ddlsched.cli.run_arguments import refuse_ineffective, run_arguments
from ddlsched.cluster.disturbances import Disturbances
from ddlsched.engine.run_options import RunOptions
from ddlsched.errors import InputError

if TYPE_CHECKING:
    from ddlsched.comparisons.tuning import Tuned

__all__ = ["tune"]

_RUNS = "The runs"
_TUNED = ("placement", "order", "communication", "allocation", "path")


@with_options
def tune(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Argument(metavar="JOBS", help="A generator whose jobs the seed makes, e.g. microsoft-160:scale=0.01."),
    ],
    *,
    tuned: Annotated[Given[RunOptions], Panel("Policies to tune", only=_TUNED, shown=dict.fromkeys(_TUNED, "none"))],
    options: Annotated[
        Given[RunOptions], Panel(_RUNS, without=(*_TUNED, "scheduler", "seed", "replay"), only_given=True)
    ],
    disturbances: Annotated[Given[Disturbances], Panel(_RUNS, metavars={"outages": "FILE.csv"}, only_given=True)],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A field and its values, e.g. placement.kappa=1:32 or communication.by=bytes,service. May be given "
            "several times.",
            metavar="DOOR.FIELD=LOW:HIGH",
            show_default="every number, from a quarter to four times its default, and every truth value",
        ),
    ] = None,
    metric: Annotated[str, typer.Option(help="Column of runs.csv to improve.", metavar="NAME")] = "average_jct_s",
    trials: Annotated[int, typer.Option(help="Sets of values tried in all.", metavar="N", parser=whole)] = 40,
    seeds: Annotated[str, typer.Option(help="On which values are chosen.", metavar="SEEDS")] = "1-6",
    held_out: Annotated[str, typer.Option(help="On which the choice is checked.", metavar="SEEDS")] = "101-112",
    out: Annotated[
        Path, typer.Option(help="Folder of the search; the same command again goes on where it was.", metavar="DIR")
    ] = Path("tuning"),
    processes: Annotated[
        int, typer.Option(help="Runs at once.", metavar="N", parser=whole, show_default="one a core")
    ] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as one JSON object.")] = False,
) -> None:
    r"""Search the fields of policies for a better metric on some seeds, and check the best on others.

    Ends with the flags of the best and a warning where the gain is not there on the held-out seeds.

    Needs pip install 'ddlsched\[tune]'.
    """
    from ddlsched.comparisons.fields import seeds_of
    from ddlsched.comparisons.tuning import tune as search
    from ddlsched.io.progress import progress_bar

    refuse_ineffective(context)
    if not tuned.values:
        raise InputError(
            "there is no policy to tune; expected --placement, --order, --communication, --allocation or --path"
        )
    with progress_bar("trials") as tell:
        found = search(
            workload,
            tuned.values,
            ranges=vary or (),
            metric=metric,
            trials=trials,
            seeds=seeds_of(seeds, "--seeds"),
            held_out=seeds_of(held_out, "--held-out"),
            options=run_arguments(options.values, disturbances.values),
            folder=out,
            processes=processes,
            watch=lambda done, total: tell(done, total, None),
        )
    emit(_json(found) if as_json else _text(found, metric))
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
    return json.dumps({name: getattr(found, name) for name in names}, indent=2) + "\n"
