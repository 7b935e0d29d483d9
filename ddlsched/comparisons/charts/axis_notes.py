"""Says where an axis begins that does not begin at 0, so that no chart makes a difference look larger than it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["axis_note", "say_where_axes_begin"]

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
