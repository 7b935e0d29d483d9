"""The map as a page: every point and policy, to be turned and looked up."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from answers import best_changes
from doors import DOORS
from points import LEVELS, Point


def page(table: pd.DataFrame, folder: Path) -> Path:
    """Write map.html, whole in itself, and return its path: a menu of doors, a mark a point, what was tried there."""
    import plotly.graph_objects as go

    folder.mkdir(parents=True, exist_ok=True)
    points = _points(table)
    figure = go.Figure([_marks(points, door) for door in DOORS])
    for trace in figure.data[1:]:
        trace.visible = False
    buttons = [
        {"label": door, "method": "update", "args": [{"visible": [each == door for each in DOORS]}]} for door in DOORS
    ]
    loads = list(LEVELS["load"])
    figure.update_layout(
        title="Change of the average JCT by the best policy of a door (menu); point at a mark for all policies",
        updatemenus=[{"buttons": buttons, "x": 1.0, "y": 1.15}],
        xaxis={"title": "network card (Gbit/s)", "type": "log"},
        yaxis={"title": "load", "tickvals": list(range(len(loads))), "ticktext": loads},
        template="plotly_white",
    )
    path = folder / "map.html"
    figure.write_html(path, include_plotlyjs=True)
    return path


def _points(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row a point: where its mark is, what is shown on pointing, and the best change of each door."""
    rows = []
    for place, of_point in table.fillna({"trace": ""}).groupby(list(Point.__dataclass_fields__), sort=False):
        point = Point(**dict(zip(Point.__dataclass_fields__, place, strict=True)))
        best = best_changes(of_point)
        rows.append({"point": point, "text": _text(point, of_point), **{door: best.get(door) for door in DOORS}})
    return pd.DataFrame(rows)


def _text(point: Point, rows: pd.DataFrame) -> str:
    lines = [f"<b>{name}: {value}</b>" for name, value in point.axes.items() if value != ""]
    for row in rows.to_dict("records"):
        interval = f"{100 * row['change']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}] %"
        lines.append(f"{row['door']}: {row['policy']} on {row['on']}: {interval} against {row['against']}")
    return "<br>".join(lines)


def _marks(points: pd.DataFrame, door: str) -> object:
    """Return a mark a point; those of other kinds of clusters stand a little aside, so that they do not hide it."""
    import plotly.graph_objects as go

    places = list(points["point"])
    kinds = sorted({_kind(point) for point in places})
    aside = [kinds.index(_kind(point)) / len(kinds) - 0.5 for point in places]
    return go.Scatter(
        x=[point.gbps * 1.5**step for point, step in zip(places, aside, strict=True)],
        y=[LEVELS["load"].index(point.load) + 0.8 * step for point, step in zip(places, aside, strict=True)],
        mode="markers",
        marker={
            "size": 12,
            "symbol": ["diamond" if point.trace else "circle" for point in places],
            "color": 100 * points[door],
            "cmin": -50,
            "cmax": 0,
            "colorscale": "Viridis",
            "colorbar": {"title": "%"},
        },
        text=points["text"],
        hoverinfo="text",
        name=door,
    )


def _kind(point: Point) -> tuple[object, ...]:
    return point.jobs_per_gpu, point.interference, point.oversubscription, point.sizes, point.trace
