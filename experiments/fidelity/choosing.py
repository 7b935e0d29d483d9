"""Which constants simulate the training mixes best.

    python experiments/fidelity/choosing.py [--measured experiments/fidelity/measured]
    python experiments/fidelity/choosing.py --packets

The first tries every point of a grid over exponent, window and loss of ``connection-shares``; the second changes one
constant of ``packet-rings`` at a time.

A point's error is the mean absolute error of JCTs against runs that were measured before. Held-out mixes are not looked
at; latency, time of a byte and of a step, and the wait of rings are those that jobs alone and pairs gave. It prints the
best point, the chosen one, and how flat it is around them.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import mixes
import pandas as pd
import run

from ddlsched.cli.reporting import interrupted, reported
from ddlsched.network.connection_shares import ConnectionShares
from ddlsched.real.testbed.fidelity import Mix
from ddlsched.real.testbed.fidelity_tables import job_errors, judged
from ddlsched.real.testbed.run_models import RunModel, simulated_runs

EXPONENTS = (0.0, 0.125, 0.25, 0.375, 0.5, 0.75)
WINDOWS_BYTES = (1e5, 2e5, 3e5, 4e5, inf)
LOSSES = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06)
CONSTANTS = ("exponent", "window_bytes", "loss")
OF_PACKETS = {
    "overhead": (0.0, 0.02, 0.06),
    "react_s": (5e-4, 3e-3),
    "packet_bytes": (5e3, 3e4),
    "recover_s": (0.015, 0.05),
}
"""What is tried of ``packet-rings`` beside what it has."""
ALIKE = 0.005
"""Points whose errors are closer to the best's are called as good."""


def grid() -> list[tuple[float, float, float]]:
    """Return the points, (exponent, window, loss); with exponent 0 all windows are the same."""
    points = itertools.product(EXPONENTS, WINDOWS_BYTES, LOSSES)
    return [point for point in points if point[0] > 0 or point[1] == inf]


def training_runs(folder: Path) -> tuple[pd.DataFrame, list[Mix]]:
    """Return the measured runs of the training mixes, and these mixes."""
    measured, ran = run.measured_runs(folder)
    training = [mix for mix in ran if not mixes.held_out(mixes.seed_of(mix.name))]
    return judged(measured[measured.mix.isin([mix.name for mix in training])]), training


def searched(folder: Path, points: Sequence[tuple[float, float, float]]) -> pd.DataFrame:
    """Return a row a point, the best first: its constants and ``error``, a share."""
    measured, training = training_runs(folder)
    whole = run.fitted(folder).by_name["connection-shares"].contention
    rows = []
    for point in points:
        constants = dict(zip(CONSTANTS, point, strict=True))
        models = {"of the grid": RunModel(contention=replace(whole, **constants))}
        error = job_errors(measured, simulated_runs(training, models)).jct_error.abs().mean()
        rows.append(constants | {"error": error})
    return pd.DataFrame(rows).sort_values("error", kind="stable", ignore_index=True)


def changed_one_at_a_time(folder: Path) -> Iterator[str]:
    """Yield a line for ``packet-rings`` as it is, and one for each change of a constant of it."""
    measured, training = training_runs(folder)
    whole = run.fitted(folder).by_name["packet-rings"]
    points = [(name, value) for name, values in OF_PACKETS.items() for value in values]
    yield f"mean error of a JCT: {_error(measured, training, whole):.2f} % as it is"
    for name, value in points:
        model = replace(whole, contention=replace(whole.contention, **{name: value}))
        yield f"  {name} {value:g}: {_error(measured, training, model):.2f} %"


def _error(measured: pd.DataFrame, training: list[Mix], model: RunModel) -> float:
    return float(100 * job_errors(measured, simulated_runs(training, {"own": model})).jct_error.abs().mean())


def told(row: pd.Series) -> str:
    """Return a point as text."""
    return (
        f"exponent {row.exponent:g}, window {row.window_bytes / 1e3:g} kB, loss {row.loss:g}: {100 * row.error:.2f} %"
    )


def text(found: pd.DataFrame, chosen: ConnectionShares) -> str:
    """Return what is printed of the points, the best first."""
    best = found.iloc[0]
    lines = [f"mean error of a JCT, of {len(found)} points", f"  best: {told(best)}"]
    own = (found[list(CONSTANTS)] == [getattr(chosen, name) for name in CONSTANTS]).all(axis=1)
    lines += [f"  chosen, number {place + 1}: {told(found.loc[place])}" for place in found.index[own]]
    alike = found[found.error - best.error <= ALIKE]
    lines.append(f"  within {100 * ALIKE:g} points of the best: {len(alike)}")
    for name in CONSTANTS:
        least = found.groupby(name).error.min() * 100
        each = ", ".join(f"{value:g}: {error:.2f}" for value, error in least.items())
        lines.append(f"least error by {name}, whatever the others (%): {each}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Search, print."""
    parser = argparse.ArgumentParser(description="Which constants simulate training mixes best.")
    parser.add_argument("--measured", type=Path, default=Path(__file__).parent / "measured")
    parser.add_argument("--packets", action="store_true", help="those of packet-rings, one at a time")
    asked = parser.parse_args(arguments)
    folder = asked.measured
    if asked.packets:
        for line in changed_one_at_a_time(folder):
            print(line, flush=True)
        return
    print(text(searched(folder, grid()), run.fitted(folder).by_name["connection-shares"].contention))


if __name__ == "__main__":
    with reported():
        try:
            main(sys.argv[1:])
        except KeyboardInterrupt:
            sys.exit(interrupted())
