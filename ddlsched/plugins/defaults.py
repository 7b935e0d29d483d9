"""The names of the plug-ins of a run that names none: those of the 64-GPU experiment."""

from __future__ import annotations

__all__ = ["DEFAULT_BUNDLE", "DEFAULT_CONTENTION"]

DEFAULT_BUNDLE = "ada-srsf"
DEFAULT_CONTENTION = "10gbe"
