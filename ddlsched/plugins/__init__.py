"""Plug-ins: names to instances, files of users, and the names that a run has which names none."""

from __future__ import annotations

DEFAULT_ADMISSION = "kueue"
DEFAULT_BUNDLE = "ada-srsf"
DEFAULT_CONTENTION = "linear"
IMPORT_CONTENTION = "10gbe"
"""Of a trace's jobs, which are imported without a network: a card of its own."""
