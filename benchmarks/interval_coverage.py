"""How often 95 % intervals hold the mean, and how often verdicts err, by simulation.

python benchmarks/interval_coverage.py                    all that docs/statistics.md shows: up to half an hour
python benchmarks/interval_coverage.py --samples 100      a tenth of the time, to one digit less

A population is what one seed gives: drawn from a distribution, or one of the 100 changes that were measured in
the 64-GPU experiment, seed by seed. A sample is a comparison over a few seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import typer
from benchmark_tables import Table, say
from scipy.stats import bootstrap, t

from ddlsched.results.statistics import CONFIDENCE, LEAST_SEEDS, holm, log_ratios, mean_interval, p_value, verdict

MEASURED = Path(__file__).parents[1] / "experiments" / "contention_64gpu" / "expected" / "average_jct_s_per_seed.csv"
SEEDS = (3, LEAST_SEEDS, 10, 20, 50)
Draw = Callable[[np.random.Generator, int, int], np.ndarray]


class Population(NamedTuple):
    """What a seed gives: ``draw(rng, samples, seeds)`` returns an array of that shape; ``mean`` is the true mean."""

    name: str
    mean: float
    draw: Draw


class Family(NamedTuple):
    """A table of comparisons, in each of which there is no difference, or a true one (``effects``)."""

    name: str
    changes: Callable[[np.random.Generator, int], np.ndarray]
    effects: np.ndarray


def measured(policy: str, baseline: str) -> np.ndarray:
    """Return the logarithm of the measured change of the average JCT, a value a seed."""
    per_seed = pd.read_csv(MEASURED, index_col="seed")
    return log_ratios(per_seed[policy], per_seed[baseline])


def resampled(name: str, values: np.ndarray) -> Population:
    return Population(name, float(values.mean()), lambda rng, *shape: rng.choice(values, shape))


POPULATIONS = (
    Population("normal", 0.0, lambda rng, *shape: rng.normal(size=shape)),
    resampled("measured: Ada-SRSF against SRSF(1)", measured("communication: Ada-SRSF", "communication: SRSF(1)")),
    resampled("measured: random against first-fit", measured("placement: RAND", "placement: FF")),
    Population("heavy tails (Student, 3 degrees)", 0.0, lambda rng, *shape: rng.standard_t(3, size=shape)),
    Population("ties (-1, 0, 0, 0, 1)", 0.0, lambda rng, *shape: rng.choice([-1.0, 0.0, 0.0, 0.0, 1.0], shape)),
    Population("skewed (exponential)", 1.0, lambda rng, *shape: rng.exponential(size=shape)),
)


def measured_family() -> Family:
    """Return the six communication policies against SRSF(1): of the same seeds, so they depend on each other."""
    names = [name for name in pd.read_csv(MEASURED, nrows=1) if name.startswith("communication: ")]
    changes = np.array([measured(name, "communication: SRSF(1)") for name in names[1:]])
    apart = changes - changes.mean(axis=1, keepdims=True)
    return Family(
        "measured: 6 communication policies",
        lambda rng, seeds: apart[:, rng.integers(100, size=seeds)],
        changes.mean(axis=1),
    )


def independent_family(name: str, draw: Draw, mean: float, effect: float) -> Family:
    """Return 20 comparisons that do not depend on each other."""
    return Family(name, lambda rng, seeds: draw(rng, 20, seeds) - mean, np.full(20, effect))


FAMILIES = (
    measured_family(),
    independent_family("20 independent, normal", POPULATIONS[0].draw, 0.0, 1.0),
    independent_family("20 independent, skewed", POPULATIONS[-1].draw, 1.0, 1.0),
)


def tables(samples: int) -> Iterator[Table]:
    """Measure and yield the tables."""
    columns = ("population", "seeds", "ours", "BCa", "percentiles", "Student")
    rows = [[p.name, seeds, *coverage(p, seeds, samples)] for p in POPULATIONS for seeds in SEEDS]
    title = f"How many of {samples} intervals of 95 % hold the true mean, %"
    yield Table(title=title, columns=columns, rows=rows, notes=["Ours: mean_interval. The others for comparison."])
    columns = ("comparisons", "seeds", "wrong", "tables with a wrong one", "the same, Holm", "found", "found, Holm")
    rows = [[f.name, seeds, *errors(f, seeds, samples)] for f in FAMILIES for seeds in SEEDS if seeds >= LEAST_SEEDS]
    notes = [
        "Wrong: verdicts other than undecided where there is no difference.",
        "Found: right verdicts where there is one: the measured ones; in the others of one standard deviation.",
    ]
    yield Table(title=f"How often verdicts err, in {samples} tables, %", columns=columns, rows=rows, notes=notes)


def coverage(population: Population, seeds: int, samples: int) -> list[float]:
    """Return the percentage of intervals that hold the mean: ours, BCa, plain percentiles, Student's."""
    say(f"coverage: {population.name}, {seeds} seeds")
    drawn = population.draw(np.random.default_rng(seeds), samples, seeds)
    ours = [mean_interval(sample) for sample in drawn]
    ends = [(np.array([i.low for i in ours]), np.array([i.high for i in ours]))]
    ends += [plain_bootstrap(drawn, method) for method in ("BCa", "percentile")]
    ends.append(t.interval(CONFIDENCE, seeds - 1, drawn.mean(axis=1), drawn.std(axis=1, ddof=1) / seeds**0.5))
    return [100.0 * float(np.mean((low <= population.mean) & (population.mean <= high))) for low, high in ends]


def plain_bootstrap(drawn: np.ndarray, method: str) -> tuple[np.ndarray, np.ndarray]:
    varied = np.ptp(drawn, axis=1) > 0.0  # of values all alike scipy gives NaN
    low, high = drawn.mean(axis=1), drawn.mean(axis=1)
    interval = bootstrap(
        (drawn[varied],), np.mean, axis=1, method=method, batch=500, rng=np.random.default_rng(0)
    ).confidence_interval
    low[varied], high[varied] = interval.low, interval.high
    return low, high


def errors(family: Family, seeds: int, samples: int) -> list[float]:
    """Return percentages: wrong verdicts, tables with one, the same by Holm; right ones, the same by Holm."""
    say(f"verdicts: {family.name}, {seeds} seeds")
    rng = np.random.default_rng(seeds)
    drawn = [family.changes(rng, seeds) for _ in range(samples)]
    wrong, wrong_holm = map(np.array, zip(*(decided(changes) for changes in drawn), strict=True))
    effects = family.effects[:, None]
    found, found_holm = map(np.array, zip(*(decided(changes + effects) for changes in drawn), strict=True))
    right, shown = np.sign(family.effects), wrong != 0.0
    shares = (shown, shown.any(axis=1), (wrong_holm != 0.0).any(axis=1), found == right, found_holm == right)
    return [100.0 * float(share.mean()) for share in shares]


def decided(changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sign that each verdict gives a row of changes (0: undecided), by itself and by Holm."""
    sign = {"better": -1.0, "worse": 1.0, "undecided": 0.0}
    single = np.array([sign[verdict(mean_interval(row))] for row in changes])
    return single, np.where(holm([p_value(row) for row in changes]) <= 1.0 - CONFIDENCE, single, 0.0)


def main(samples: int = 1000) -> None:
    for table in tables(samples):
        print(table, end="\n\n")


if __name__ == "__main__":
    typer.run(main)
