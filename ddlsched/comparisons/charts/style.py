"""The one style of all charts: column width of a paper, colour-blind-safe colours, files alike to the byte.

Figures are made without pyplot, so that drawing changes no global state and needs no display.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import textwrap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ddlsched.errors import InputError
from ddlsched.io.files import made_folder, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Size: TypeAlias = tuple[float, float] | None
"""Width and height of a figure, inches; None for what the chart needs."""
COLUMN_INCHES = 3.5
"""Width of a column in a two-column paper."""

INK = "#222222"
MUTED = "#6b6b6b"
DARK_PAGE = "#1b1f24"
"""What charts stand on in the dark form of a report."""

PALETTE = {
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "vermillion": "#d55e00",
    "purple": "#aa4499",
    "sky": "#56b4e9",
    "wine": "#882255",
    "olive": "#999933",
    "indigo": "#332288",
    "rose": "#cc6677",
    "teal": "#44aa99",
    "forest": "#117733",
    "sand": "#c9b65a",
    "grey": "#777777",
}
"""Okabe and Ito's colours, and Tol's muted ones where those run out."""

_ALIKE = (
    {"blue", "indigo"},
    {"orange", "sand", "olive"},
    {"green", "teal", "forest"},
    {"vermillion", "rose", "wine"},
    {"purple", "wine", "rose"},
)
"""Colours of the palette that are taken for each other side by side."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)), (0, (9, 2)))
"""Line styles, so that lines are told apart also in print."""

JOB_COLOURS = (
    "#77aadd",
    "#eedd88",
    "#ee8866",
    "#44bb99",
    "#ffaabb",
    "#bbcc33",
    "#99ddff",
    "#aaaa00",
    "#c8a9d6",
    "#cfae8d",
)
"""Tol's light colours, for areas with dark text on them; they tell neighbours apart and mean nothing."""

IDLE = "#f1f1ee"
"""Of a GPU without a job."""

SHADES = ("#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6")
"""From little to much: those of Brewer's blues on which dark text is read well."""

_KNOWN = {
    "blue": "ada-srsf adadual lwf-1 lwf:kappa=1 κ=1",
    "teal": "lwf-2 lwf:kappa=2 κ=2",
    "forest": "lwf-4 lwf:kappa=4 κ=4",
    "sand": "lwf-8 lwf:kappa=8 κ=8",
    "orange": "srsf-1 bounded-overlap:limit=1",
    "green": "srsf-2 bounded-overlap:limit=2",
    "purple": "srsf-3 bounded-overlap:limit=3",
    "vermillion": "preemptive:by=service-per-gpu preemptive",
    "sky": "preemptive:by=bytes",
    "indigo": "preemptive:by=service",
    "wine": "random rand",
    "rose": "first-fit ff",
    "olive": "list-scheduling ls lwf-32 lwf:kappa=32 κ=32",
}

_PARAMETER = re.compile(r"(?:[^\W\d][=_]|\blwf-)(\d+(?:\.\d+)?)(?![\w.])", re.IGNORECASE)
"""The number of ``kappa=1`` or ``kappa_1``, and of ``LWF-1``, which is short for it."""
_FILE = re.compile(r"^\S*\.py:")
_LIGHT, _DARK = "#86c8dc", "#0b2a5b"
_FEWEST_IN_ORDER = 3

_STYLE = Path(__file__).with_name("ddlsched.mplstyle")


def colours(labels: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a colour a label: the given one, a built-in policy's own under any of its names, or a hash's choice.

    The same label has the same colour in every chart, unless two unknown ones of one chart would clash. Three labels or
    more that differ in one parameter's number only (``kappa=1``, ``kappa=2``, ...) go from light to dark in its order.
    """
    given = _ordered(labels) | dict(given or {})
    known = {_plain(name): PALETTE[colour] for colour, names in _KNOWN.items() for name in names.split()}
    result = {label: known[_plain(label)] for label in labels if _plain(label) in known} | given
    for label in labels:
        if label not in result:
            result[label] = _hashed(label, set(result.values()))
    return result


def _ordered(labels: Sequence[str]) -> dict[str, str]:
    """Return the colours of labels that differ in the value of one parameter only."""
    families: dict[str, list[tuple[float, str]]] = {}
    for label in dict.fromkeys(labels):
        parameters = list(_PARAMETER.finditer(label))
        for found in parameters:
            rest = f"{label[: found.start(1)]}#{label[found.end(1) :]}"
            families.setdefault(rest, []).append((float(found[1]), label))
    result: dict[str, str] = {}
    for family in families.values():
        if len(family) >= _FEWEST_IN_ORDER:
            for place, (_, label) in enumerate(sorted(family)):
                result[label] = _between(_LIGHT, _DARK, place / (len(family) - 1))
    return result


def _between(light: str, dark: str, part: float) -> str:
    """Return the colour that lies a part of the way from one to another."""
    pairs = [(int(light[at : at + 2], 16), int(dark[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(one + (other - one) * part):02x}" for one, other in pairs)


def short_labels(labels: Sequence[str]) -> dict[str, str]:
    """Return how a chart calls each policy: without the parts that all have, and without folders and files.

    Of ``lwf:kappa=1 + srsf + mine.py:Mine:limit=3`` beside ``lwf:kappa=1 + srsf + adadual``, ``Mine:limit=3``. Labels
    that would then be alike stay whole.
    """
    parts = [label.split(" + ") for label in labels]
    common = set.intersection(*map(set, parts)) if len(parts) > 1 and min(map(len, parts)) > 1 else set()
    own = [" + ".join(_FILE.sub("", part) for part in each if part not in common) for each in parts]
    alike = len(set(own)) < len(set(labels)) or "" in own
    return dict(zip(labels, labels if alike else own, strict=True))


def resized(figure: Figure, size: Size) -> Figure:
    """Return the figure with a width and a height in inches, or as it is.

    Raises
    ------
    InputError
        The size is none.
    """
    if size is not None:
        if not (isinstance(size, tuple | list) and len(size) == 2 and all(_is_a_side(side) for side in size)):
            raise InputError(f"size is {size!r}; expected a width and a height of 0.5 to 100 inches, e.g. (3.3, 2.2)")
        figure.set_size_inches(*size)
    return figure


def _is_a_side(side: object) -> bool:
    return isinstance(side, int | float) and 0.5 <= side <= 100


def _plain(label: str) -> str:
    """Return a label without what writings of one name differ in: ``SRSF(1)`` is ``srsf-1``."""
    return re.sub(r"\W", "", label.lower())


def _hashed(label: str, taken: set[str]) -> str:
    """Return the first colour from the hash's on that is not taken, and if there is one, looks like none that is."""
    start = zlib.crc32(label.encode())
    names = [list(PALETTE)[(start + step) % len(PALETTE)] for step in range(len(PALETTE))]
    free = [name for name in names if PALETTE[name] not in taken]
    similar = {name for group in _ALIKE if any(PALETTE[each] in taken for each in group) for name in group}
    return PALETTE[min(free or names, key=lambda name: (name in similar, name == "grey"))]


def wrapped(label: str, width: int = 24) -> str:
    """Return a policy's label in lines of at most ``width`` characters, so that the data keep their place.

    A line ends after a space or a mark such as ``:`` or ``/``, or anywhere if there is none.
    """
    lines = [""]
    for piece in re.findall(r"[^\s:/,=+-]*[\s:/,=+-]+|[^\s:/,=+-]+", label):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append("")
        *whole, rest = textwrap.wrap(piece, width, drop_whitespace=False)
        lines[-1:] = [lines[-1] + part for part in (whole or [rest])] + ([rest] if whole else [])
    return "\n".join(line.strip() for line in lines)


def axis_title(title: str) -> str:
    """Return an axis' title in lines that a column has room for; lines that it has stay."""
    return "\n".join(textwrap.fill(line, round(15 * COLUMN_INCHES)) for line in title.split("\n"))


def plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis 1, 2, 5, 10, ... in place of powers; from a thousandfold on, 1, 10, 100, ..."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def short(value: float) -> str:
    """Return a number in three figures, or whole."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def on_dark(colour: str) -> str:
    """Return a colour for a dark page: the same, or mixed with white until it stands out (WCAG's 3 : 1)."""
    for white in range(0, 100, 5):
        mixed = _between(colour, "#ffffff", white / 100)
        if (_luminance(mixed) + 0.05) / (_luminance(DARK_PAGE) + 0.05) >= 3.2:
            break
    return mixed


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@contextlib.contextmanager
def in_style() -> Iterator[None]:
    """Draw in the style, whatever the user's matplotlibrc says; also a decorator of what draws."""
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def shown_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure that notebooks show without pyplot, and whose axes say where they begin."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that is a picture where HTML is shown."""

        def draw(self, renderer: Any) -> None:
            """Draw all of it."""
            say_where_axes_begin(self)
            super().draw(renderer)

        def savefig(self, *args: Any, **options: Any) -> None:
            """Write it in the style, whatever the user's matplotlibrc says."""
            with in_style():
                super().savefig(*args, **options)

        def _repr_html_(self) -> str:
            sink = io.BytesIO()
            self.savefig(sink, format="png", dpi=150, metadata={"Software": None})
            width = round(100 * self.get_figwidth())
            source = f"data:image/png;base64,{base64.b64encode(sink.getvalue()).decode()}"
            return f'<img alt="chart" width="{width}" src="{source}">'

    return Shown(figsize=(width_inches, height_inches), layout="constrained")


def new_figure(height_inches: float, *, width_inches: float = COLUMN_INCHES) -> tuple[Figure, Axes]:
    """Return an empty figure with one pair of axes."""
    figure, (axes,) = new_panels(height_inches, 1, width_inches=width_inches)
    return figure, axes


def new_panels(height_inches: float, panels: int, *, width_inches: float = COLUMN_INCHES) -> tuple[Figure, list[Axes]]:
    """Return an empty figure with several pairs of axes side by side."""
    figure = shown_figure(width_inches, height_inches)
    return figure, [figure.add_subplot(1, panels, place + 1) for place in range(panels)]


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png and ``stem``.svg, the same bytes for the same figure, and return their paths."""
    png, svg = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".svg")
    made_folder(stem.parent, "charts")
    with replacing(png, "chart") as new:
        figure.savefig(new, metadata={"Software": None})
    with replacing(svg, "chart") as new:
        figure.savefig(new, metadata={"Date": None, "Creator": None})
    return [png, svg]


_NOTE = re.compile(r"(^|\n)(log scale|axis from -?\d\S*)$")
_TICK = re.compile(r"^[-\N{MINUS SIGN}]?[\d.,]+( ?%)?$|\^")
"""A number, or a power such as ``$\\mathdefault{10^{1}}$``."""


def say_where_axes_begin(figure: Figure) -> None:
    """Put its :func:`axis_note` under the label of each axis of numbers; panels that share an axis say it once."""
    for axes in figure.axes:
        for axis, limits, sharing in _axes_of(axes):
            label = _NOTE.sub("", axis.get_label_text())
            if label or not any(other.get_label_text() for other in sharing):
                note = axis_note(axis, limits)
                axis.set_label_text("\n".join(filter(None, (label, note))))


def axis_note(axis: Any, limits: tuple[float, float]) -> str:
    """Return ``log scale``, or ``axis from 0.7`` for an axis whose limits leave 0 out; nothing for any other.

    An axis without numbers, such as one of names, has no 0.
    """
    ticks = axis.get_major_formatter().format_ticks(axis.get_majorticklocs())
    if not axis.get_visible() or not any(_TICK.search(tick) for tick in ticks):
        return ""
    if axis.get_scale() == "log":
        return "log scale"
    low, high = sorted(limits)
    return "" if low <= 0 <= high else f"axis from {low if low > 0 else high:.3g}"


def _axes_of(axes: Axes) -> Iterator[tuple[Any, tuple[float, float], list[Any]]]:
    """Yield both axes, their limits, and the axes that they share them with."""
    if axes.axison:
        for name, axis, limits in (("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())):
            shared = getattr(axes, f"get_shared_{name}_axes")().get_siblings(axes)
            yield axis, limits, [getattr(other, f"{name}axis") for other in shared if other is not axes]
