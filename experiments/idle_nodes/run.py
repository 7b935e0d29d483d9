"""Malleable training on idle nodes: the reference replay, what the published systems do, and what is left to be gained.

python experiments/idle_nodes/run.py                        all parts
python experiments/idle_nodes/run.py --reference --json     the reference rows alone, as JSON
python experiments/idle_nodes/run.py --part sweep --data DIR
python experiments/idle_nodes/run.py --part main_queue --log FILE.swf
python experiments/idle_nodes/run.py --part logs --log FILE.swf --log OTHER.swf
python experiments/idle_nodes/run.py --measured experiments/idle_nodes/expected

DIR holds the measured fragments and trainers; without it ../shared/data/idle_nodes is used if it is there, or else the
generated trace in this folder. FILE.swf is a log of a main queue, beside jobs of Lublin's model; --part logs has the
logs alone, each on as many nodes as its header says. --measured prints and draws tables that were computed before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from beyond import beyond
from charts import CHARTS
from inputs import load
from main_queue import main_queue
from networks import topology
from parallel import Workers
from parts import crosscheck, reference, sweep
from streams import streams
from tables import ROWS, shown

from ddlsched.comparisons.charts.style import save
from ddlsched.errors import DdlschedError
from experiments.commands import PUBLIC_DATA

MEASURED = PUBLIC_DATA / "idle_nodes"
LOG = PUBLIC_DATA / "traces" / "swf" / "lublin_256.swf"
SEEDS = 8
PARTS: dict[str, Callable[..., pd.DataFrame]] = {
    "reference": reference,
    "crosscheck": crosscheck,
    "sweep": sweep,
    "topology": topology,
    "beyond": beyond,
}


def main() -> int:
    """Compute, print, write."""
    given = arguments()
    if given.measured is not None:
        for part in given.part or [part for part in ROWS if (given.measured / f"{part}.csv").is_file()]:
            report(part, pd.read_csv(given.measured / f"{part}.csv"), "measured", given.out)
        return 0
    computed = PARTS | {"streams": partial(streams, seeds=given.seeds)}
    logs = given.log or [LOG] * LOG.is_file()
    computed["main_queue"] = lambda _, workers: main_queue(workers, [None, *logs], given.seeds)
    parts = (given.part or []) + ["reference"] * given.reference or list(computed)
    computed["logs"] = lambda _, workers: main_queue(workers, logs, given.seeds)
    try:
        inputs = load(given.data)
        tables = {}
        for part in dict.fromkeys(parts):
            tables[part] = computed[part](inputs, Workers(given.jobs))
            if not given.json:
                report(part, tables[part], inputs.name, given.out)
    except DdlschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped; the parts that were done are written.", file=sys.stderr)
        return 130
    if given.json:
        rows = {part: json.loads(table.to_json(orient="records")) for part, table in tables.items()}
        print(json.dumps(rows["reference"] if parts == ["reference"] else rows, indent=2))
    return 0


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/idle_nodes"), metavar="DIR")
    parser.add_argument("--data", type=Path, default=MEASURED if MEASURED.is_dir() else None, metavar="DIR")
    parser.add_argument("--log", type=Path, action="append", metavar="FILE.swf", help="may be given several times")
    parser.add_argument(
        "--part",
        action="append",
        choices=sorted([*PARTS, "streams", "main_queue", "logs"]),
        help="may be given several times",
    )
    parser.add_argument("--reference", action="store_true", help="the same as --part reference")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help="of parts that draw jobs, at least 2 (default: %(default)s)"
    )
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="DIR",
        help="print and draw DIR's tables; compute nothing",
    )
    parser.add_argument("--jobs", type=int, default=-1, metavar="N", help="processes; default: one a core")
    parser.add_argument("--json", action="store_true", help="print JSON, write nothing")
    given = parser.parse_args()
    if "logs" in (given.part or []) and not given.log:
        parser.error("--part logs: expected --log FILE.swf")
    if given.seeds < 2:
        parser.error(f"--seeds {given.seeds}: expected at least 2, since intervals are over seeds")
    return given


def report(part: str, table: pd.DataFrame, trace: str, out: Path) -> None:
    """Print a part's table, write it as CSV, as computed and as printed, and draw its chart."""
    for folder in ("tables", "printed"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "tables" / f"{part}.csv", index=False, float_format="%.9g", lineterminator="\n")
    print(f"## {part} ({trace})\n")
    if part in ROWS:
        pd.DataFrame(ROWS[part](table)).to_csv(out / "printed" / f"{part}.csv", index=False, lineterminator="\n")
        print(f"{shown(part, table)}\n")
    if part in CHARTS:
        print("Chart:", *save(CHARTS[part](table), out / "charts" / part), "\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
