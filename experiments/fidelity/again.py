"""How far runs that were made again are from the first ones: what the machine's other work did to the measurements.

    python experiments/fidelity/again.py [--again experiments/fidelity/measured/again.csv]

``run.py --out DIR --first-mix 100 --mixes 24 --compared 0`` makes runs again; ``DIR/measured.csv`` is such a table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import measuring
import numpy as np
import pandas as pd

from ddlsched.cli.reporting import reported
from ddlsched.errors import InputError
from ddlsched.results.statistics import mean_interval

HERE = Path(__file__).parent
_RUN = ["mix", "policy", "job_id"]


def ratios(first: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """Return a row a job that has both: mix, policy, job_id and ``ratio``, its JCT again over that of the first run.

    Raises
    ------
    InputError
        No job has both.
    """
    both = first[first.repeat == 0].merge(again[again.repeat == 0], on=_RUN, suffixes=("_first", "_again"))
    if both.empty:
        raise InputError("--again: holds no run of a mix that was measured before; expected a table of such runs")
    return both[_RUN].assign(ratio=both.jct_s_again / both.jct_s_first)


def text(found: pd.DataFrame) -> str:
    """Return what is printed: the mean over mixes with its 95 % interval, and how far single jobs are off."""
    of_mixes = np.log(found.ratio).groupby(found.mix).mean()
    interval = mean_interval(of_mixes.to_numpy())
    longer = [100 * (np.exp(value) - 1) for value in (interval.mean, interval.low, interval.high)]
    off = 100 * (found.ratio - 1).abs()
    return (
        f"{len(found)} jobs of {len(of_mixes)} mixes take {longer[0]:+.1f} [{longer[1]:+.1f}, {longer[2]:+.1f}] % "
        f"when they are run again (geometric mean over mixes); a job's JCT differs by {off.mean():.1f} % in the mean, "
        f"{off.max():.0f} at most"
    )


def main(arguments: Sequence[str]) -> None:
    """Read both tables, print."""
    parser = argparse.ArgumentParser(description="How far runs that were made again are from the first ones.")
    parser.add_argument("--measured", type=Path, default=HERE / "measured")
    parser.add_argument("--again", type=Path, default=HERE / "measured" / "again.csv")
    args = parser.parse_args(arguments)
    first, again = (pd.read_csv(path) for path in (args.measured / measuring.MEASURED, args.again))
    print(text(ratios(first, again)))


if __name__ == "__main__":
    with reported():
        main(sys.argv[1:])
