"""Draws which rooms of ``ddlsched`` import which: a row imports a column, a number says how many modules do.

    python docs/draw_imports.py imports.png . ../before

Rooms stand in the order of their imports, so that a number above the diagonal is an arrow that points back. Each tree
is a checkout, and has a panel of its own.
"""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.axes import Axes

from ddlsched.comparisons.charts.style import new_panels


def room(module: str) -> str:
    """Return the room of a module; that of ``ddlsched/__init__.py`` is ``ddlsched``."""
    return module.split(".")[1] if "." in module else module


def count_imports(tree: str) -> Counter[tuple[str, str]]:
    """Return how many imports of modules go from one room to another."""
    sys.path.insert(0, tree)
    import grimp  # in the process that has the tree on its path

    graph = grimp.build_graph("ddlsched", cache_dir=None)
    found = (
        (room(module), room(other))
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    )
    return Counter(pair for pair in found if pair[0] != pair[1])


def order_of_rooms(imports: Counter[tuple[str, str]]) -> list[str]:
    """Return the rooms, those that import nothing first; rooms in a circle stand together."""
    circles = nx.condensation(nx.DiGraph([(other, importer) for importer, other in imports]))
    members = {circle: sorted(names) for circle, names in circles.nodes(data="members")}
    return [name for circle in nx.lexicographical_topological_sort(circles, members.get) for name in members[circle]]


def draw(axes: Axes, imports: Counter[tuple[str, str]], title: str) -> None:
    """Draw one tree's rooms, with what is imported from left to right."""
    rooms = order_of_rooms(imports)
    counts = np.array([[imports[importer, other] for other in rooms] for importer in rooms], float)
    axes.imshow(np.where(counts > 0, np.log1p(counts), np.nan), cmap="Blues", vmin=0)
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if count > 12 else "black"
            axes.text(column, row, f"{count:.0f}", ha="center", va="center", fontsize=6, color=colour)
    axes.plot([-0.5, len(rooms) - 0.5], [-0.5, len(rooms) - 0.5], color="grey", linewidth=0.5)
    axes.set_xticks(range(len(rooms)), rooms, rotation=90)
    axes.set_yticks(range(len(rooms)), rooms)
    axes.set(xlabel="is imported", ylabel="imports")
    above = int(np.count_nonzero(np.triu(counts)))
    axes.set_title(f"{title}: {len(rooms)} rooms, {len(imports)} arrows, {above} of them back")


def main(out: str, *trees: str) -> None:
    """Write the picture of some checkouts."""
    with ProcessPoolExecutor(1, max_tasks_per_child=1) as processes:
        found = list(processes.map(count_imports, trees))
    figure, panels = new_panels(8, len(trees), width_inches=8 * len(trees))
    for axes, imports, tree in zip(panels, found, trees, strict=True):
        draw(axes, imports, Path(tree).absolute().name)
    figure.savefig(out, dpi=100, bbox_inches="tight")
    print(out)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python docs/draw_imports.py OUT.png TREE [TREE ...]")
    main(*sys.argv[1:])
