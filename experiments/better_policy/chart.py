"""The chart of the committed table of all grounds: ``python experiments/better_policy/chart.py``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from policies import KNOWING_RACKS, LEARNING, OURS
from tables import chart

EXPECTED = Path(__file__).parent / "expected"


def main() -> None:
    """Draw it."""
    print(chart(pd.read_csv(EXPECTED / "room.csv"), [*LEARNING, *OURS, *KNOWING_RACKS], EXPECTED))


if __name__ == "__main__":
    main()
