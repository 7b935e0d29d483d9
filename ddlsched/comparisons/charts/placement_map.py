"""Which job was on which GPU when: a map with a row a GPU, and the boxes and colours that it is made of."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.comparisons.charts import style
from ddlsched.deferred import nx, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_VECTOR_BOXES = 4000
_LABEL_POINTS = 5
_AXES_INCHES = style.COLUMN_INCHES - 0.5
_LEAST_SHARED_ROW_POINTS = 1.5
_LEAST_EDGED_POINTS = 1.2
_LEAST_LABEL_POINTS = 120


def placement_boxes(placements: pd.DataFrame, *, shared: bool = True) -> pd.DataFrame:
    """Return the rectangles of a placement map, with the number of a colour each.

    Jobs that are on a GPU at the same time share its row's height, in the order in which they came. Rows of
    neighbouring GPUs of a server that show one job alone at the same times are one rectangle.

    Parameters
    ----------
    placements
        A row a stay of a job on a GPU: ``job_id``, ``gpu``, ``server``, ``from_s``, ``to_s``.
    shared
        False: of the jobs that are on a GPU at once only the one that came first, for maps whose rows are too
        low for more.

    Returns
    -------
    DataFrame
        ``job_id``, ``server``, ``first_gpu``, ``last_gpu``; ``from_s``, ``to_s`` of the rectangle, and
        ``stay_from_s``, ``stay_to_s`` of the job's stay that it is part of; ``jobs`` that are there at once;
        ``bottom``, ``height`` in rows (GPU g is from g to g + 1); ``colour``, an index into ``JOB_COLOURS``,
        different from those of all jobs whose rectangles touch the job's wherever there are enough colours.
    """
    stays = placements[placements["to_s"] > placements["from_s"]].sort_values(["gpu", "from_s", "to_s", "job_id"])
    rows = [list(group.itertuples(index=False)) for _, group in stays.groupby("gpu", sort=True)]
    boxes = _merged(box for row in rows for box in _row_boxes(row, shared))
    names = ["job_id", "server", "first_gpu", "last_gpu", "from_s", "to_s", "stay_from_s", "stay_to_s"]
    frame = pd.DataFrame(boxes, columns=[*names, "jobs", "bottom", "height"])
    colour = _job_colours(boxes)
    return frame.assign(colour=[colour[job] for job in frame["job_id"]])


def _row_boxes(row: list[Any], shared: bool) -> Iterator[dict[str, Any]]:
    """Yield the rectangles of a GPU: between any two times at which a job comes or goes one for each job there."""
    times_s = sorted({time_s for stay in row for time_s in (stay.from_s, stay.to_s)})
    arriving = {from_s: list(stays) for from_s, stays in itertools.groupby(row, key=lambda stay: stay.from_s)}
    there: list[Any] = []
    open_boxes: dict[Any, dict[str, Any]] = {}
    for from_s, to_s in itertools.pairwise(times_s):
        there = [stay for stay in there if stay.to_s > from_s] + arriving.pop(from_s, [])
        for place, stay in enumerate(there if shared else there[:1]):
            jobs = len(there)
            height = 1 / jobs if shared else 1.0
            box = open_boxes.get(stay.job_id)
            if box and (box["to_s"], box["jobs"], box["place"]) == (from_s, jobs, place):
                box["to_s"] = to_s
                continue
            if box:
                yield box
            span = {"from_s": from_s, "to_s": to_s, "stay_from_s": stay.from_s, "stay_to_s": stay.to_s}
            where = {"server": stay.server, "first_gpu": stay.gpu, "last_gpu": stay.gpu, "place": place, "jobs": jobs}
            shape = {"bottom": stay.gpu + place * height, "height": height}
            open_boxes[stay.job_id] = {"job_id": stay.job_id, **where, **span, **shape}
    yield from open_boxes.values()


def _merged(boxes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return boxes, those of whole rows one below the other in a server that differ in the GPU alone as one."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for box in boxes:
        key = tuple(box[name] for name in ("job_id", "server", "from_s", "to_s", "jobs", "place"))
        above = found.get((*key, box["first_gpu"] - 1))
        if above is not None and above["height"] >= 1 <= box["height"]:
            del found[*key, above["last_gpu"]]
            box = box | {name: above[name] for name in ("first_gpu", "bottom")} | {"height": above["height"] + 1}
        found[*key, box["last_gpu"]] = box
    return list(found.values())


def _job_colours(boxes: list[dict[str, Any]]) -> dict[Any, int]:
    """Return the number of a colour for each job."""
    number = {job: place for place, job in enumerate(dict.fromkeys(box["job_id"] for box in boxes))}
    graph: nx.Graph[int] = nx.Graph()  # of numbers: the order of a set of names differs from process to process
    graph.add_nodes_from(number.values())
    graph.add_edges_from((number[one], number[other]) for one, other in _touching(boxes))
    colour = nx.greedy_color(graph, strategy="smallest_last")
    return {job: colour[place] % len(style.JOB_COLOURS) for job, place in number.items()}


def _touching(boxes: list[dict[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield the two jobs of each two rectangles that share an edge, or a part of one."""
    sided = [box | {"top": box["bottom"] + box["height"]} for box in boxes]
    for end, start, low, high in (("to_s", "from_s", "bottom", "top"), ("top", "bottom", "from_s", "to_s")):
        starting = _by_edge(sided, start)
        for edge, ending in _by_edge(sided, end).items():
            for one, other in _overlapping(ending, starting.get(edge, []), low, high):
                if one["job_id"] != other["job_id"]:
                    yield one["job_id"], other["job_id"]


def _by_edge(boxes: list[dict[str, Any]], side: str) -> dict[float, list[dict[str, Any]]]:
    found: dict[float, list[dict[str, Any]]] = defaultdict(list)
    for box in boxes:
        found[round(box[side], 9)].append(box)
    return found


def _overlapping(
    first: list[dict[str, Any]], second: list[dict[str, Any]], low: str, high: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each box of the first with each of the second whose spans from ``low`` to ``high`` overlap."""
    there: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    both = [(box, 0) for box in first] + [(box, 1) for box in second]
    for box, side in sorted(both, key=lambda pair: float(pair[0][low])):
        others = [other for other in there[1 - side] if other[high] > box[low] + 1e-9]
        there[1 - side][:] = others
        yield from ((box, other) for other in others)
        there[side].append(box)


@style.in_style()
def placement_map(placements: pd.DataFrame, servers: Sequence[int], *, title: str = "") -> Figure:
    """Return a row a GPU, from the first server's down, and a box for each time that a job was on it.

    Parameters
    ----------
    placements
        As for :func:`placement_boxes`.
    servers
        Number of GPUs of each server, in the order of their numbers.
    title
        One line, such as the policy's name.
    """
    first_gpu = np.concatenate(([0], np.cumsum(servers)))
    figure, axes = style.new_figure(float(np.clip(0.9 + 0.066 * first_gpu[-1], 1.8, 5.4)))
    row_points = 72 * (figure.get_figheight() - 0.7) / int(first_gpu[-1])
    shared = row_points >= _LEAST_SHARED_ROW_POINTS
    boxes = placement_boxes(placements, shared=shared)
    axes.set(xlim=(0, float(boxes["to_s"].max()) if len(boxes) else 1.0), ylim=(float(first_gpu[-1]), 0))
    axes.set_facecolor(style.IDLE)
    _draw_boxes(axes, boxes, row_points)
    _label_boxes(axes, boxes, row_points)
    _mark_servers(axes, first_gpu, row_points)
    several = "jobs on a GPU at once share its row" if shared else "of jobs on a GPU at once, the first is shown"
    note = f"colours only tell neighbouring jobs apart; grey: no job;\n{several}"
    axes.set_xlabel(f"Time (s)\n{note}", loc="right")
    if title:
        figure.suptitle(style.wrapped(title, 48), x=0.01, ha="left", fontsize=8.5)
    return figure


def _draw_boxes(axes: Axes, boxes: pd.DataFrame, row_points: float) -> None:
    from matplotlib.collections import PolyCollection

    left, right, top, height = (boxes[name].to_numpy(float) for name in ("from_s", "to_s", "bottom", "height"))
    corners = np.stack([left, top, right, top, right, top + height, left, top + height], axis=1).reshape(-1, 4, 2)
    colour = [style.JOB_COLOURS[number] for number in boxes["colour"]]
    edges = np.where(height * row_points >= _LEAST_EDGED_POINTS, 0.25, 0.0)  # around less they would be all there is
    drawn = PolyCollection(list(corners), facecolors=colour, edgecolors="white", linewidths=edges)
    drawn.set_rasterized(len(boxes) > _MOST_VECTOR_BOXES)  # else the SVG is too large to open
    axes.add_collection(drawn)


def _label_boxes(axes: Axes, boxes: pd.DataFrame, row_points: float) -> None:
    """Write the job's name where it fits, once a server."""
    point_s = axes.get_xlim()[1] / (72 * _AXES_INCHES)
    width_points = (boxes["to_s"] - boxes["from_s"]) / point_s
    needed_points = 0.75 * _LABEL_POINTS * (boxes["job_id"].astype(str).str.len() + 0.5)
    fitting = boxes[(width_points > needed_points) & (boxes["height"] * row_points > 0.9 * _LABEL_POINTS)]
    largest = fitting.assign(area=fitting["height"] * (fitting["to_s"] - fitting["from_s"])).sort_values("area")
    look: dict[str, Any] = {"fontsize": _LABEL_POINTS, "ha": "center", "va": "center_baseline", "clip_on": True}
    for box in largest.drop_duplicates(["job_id", "server"], keep="last").to_dict("records"):
        middle_s, middle_row = (box["from_s"] + box["to_s"]) / 2, box["bottom"] + box["height"] / 2
        axes.text(middle_s, middle_row, str(box["job_id"]), **look)


def _mark_servers(axes: Axes, first_gpu: np.ndarray, row_points: float) -> None:
    """Separate servers by lines, where these would not fill the map, and number as many as there is room for."""
    middle, servers = (first_gpu[:-1] + first_gpu[1:]) / 2, len(first_gpu) - 1
    if row_points * first_gpu[-1] / max(servers, 1) > 3:
        axes.hlines(first_gpu[1:-1], *axes.get_xlim(), color=style.INK, linewidth=0.5)
    step = next((n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if servers / n <= 17), 1000)
    axes.set_yticks(middle[::step], [str(number) for number in range(0, servers, step)])
    axes.tick_params(axis="y", length=0 if step == 1 else 2, color=style.MUTED)
    sizes = sorted(set(np.diff(first_gpu).tolist()))
    gpus = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    gap = "\n" if row_points * first_gpu[-1] < _LEAST_LABEL_POINTS else " "  # a longer one would reach the title
    axes.set_ylabel(f"Server{gap}({gpus} GPU{'' if sizes == [1] else 's'} each)")
