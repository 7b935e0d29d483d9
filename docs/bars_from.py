"""The directive ``bars-from``: a picture of a page is drawn from a committed CSV file, so that it cannot drift.

::

    :::{bars-from} experiments/contention_64gpu/expected/communication.csv
    :label: policy
    :value: change
    :ends: change_low, change_high
    :where: metric=average_jct_s
    :rows: 8
    :percent:
    :axis: Average JCT against SRSF(1) (%)
    :::

``label`` may name several columns. ``ends`` are those of an interval. ``percent`` draws shares as per cent.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives

from ddlsched.comparisons.charts.style import INK, PALETTE, in_style, new_figure, wrapped

ROOT = Path(__file__).parents[1]
DRAWN = "_drawn"


class BarsFrom(Directive):
    """A bar a row of a CSV file of the repository."""

    required_arguments = 1
    option_spec: ClassVar = {
        **dict.fromkeys(("label", "value", "ends", "where", "axis"), directives.unchanged_required),
        "rows": directives.positive_int,
        "percent": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        """Draw the picture and return it; a file, a column or a number that is not there stops the build."""
        labels, values, ends = [], [], []
        times = 100 if "percent" in self.options else 1
        try:
            for row in self._rows():
                labels.append(", ".join(row[name] for name in _names(self.options["label"])))
                values.append(times * float(row[self.options["value"]]))
                ends.append([times * float(row[name]) for name in _names(self.options.get("ends", ""))])
        except (OSError, KeyError, ValueError) as error:
            raise self.error(f"{self.arguments[0]}: {error!r}") from None
        if not values:
            raise self.error(f"{self.arguments[0]}: no row has {self.options.get('where')}")
        path = Path(DRAWN) / (self.arguments[0].replace("/", "-").removesuffix(".csv") + ".png")
        _draw(labels, values, ends, self.options["axis"], ROOT / "docs" / path)
        told = "; ".join(f"{label}: {value:.3g}" for label, value in zip(labels, values, strict=True))
        return [nodes.image(uri=path.as_posix(), alt=f"{self.options['axis']}. {told}", width="560px")]

    def _rows(self) -> list[dict[str, str]]:
        name, _, value = self.options.get("where", "").partition("=")
        with (ROOT / self.arguments[0]).open(encoding="utf-8", newline="") as file:
            chosen = [row for row in csv.DictReader(file) if not name or row[name.strip()] == value.strip()]
        return chosen[: self.options.get("rows")]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@in_style()
def _draw(labels: list[str], values: list[float], ends: list[list[float]], axis: str, path: Path) -> None:
    lines = [wrapped(label, 34) for label in labels]
    figure, axes = new_figure(0.75 + sum(0.08 + 0.15 * (1 + line.count("\n")) for line in lines), width_inches=5.6)
    axes.barh(range(len(values)), values, color=PALETTE["sky"], height=0.7)
    for place, limits in enumerate(ends):
        if limits:
            axes.plot(limits, [place, place], color=INK, linewidth=1.0)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_yticks(range(len(lines)), lines)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlabel(axis, loc="right")
    axes.grid(axis="x")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=180)


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of the directive."""
    app.add_directive("bars-from", BarsFrom)
    return {"parallel_read_safe": True}
