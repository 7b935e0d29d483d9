"""Charts of a result or a comparison: who draws them is an entry point of the group ``ddlsched.charts``."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from ddlsched.errors import PluginError

__all__ = ["Charts"]


class Charts:
    """An attribute that a registered class makes of its owner when it is asked for, such as ``result.plot``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.__doc__ = f"Charts, by the entry point ``{name}`` of the group ``ddlsched.charts``."

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Return what is made of the owner.

        Raises
        ------
        PluginError
            Nobody has registered a class that draws it.
        """
        if owner is None:
            return self
        points = entry_points(group="ddlsched.charts", name=self._name)
        if not points:
            raise PluginError(f"nobody draws a {self._name}; expected ddlsched installed anew (pip install -e .)")
        return next(iter(points)).load()(owner)
