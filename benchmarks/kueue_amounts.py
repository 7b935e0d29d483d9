"""Amounts as Kueue's sources write them: quantities such as 500m and 2Gi, of named resources."""

from __future__ import annotations

from typing import Any

from go_tables import Made

__all__ = ["amount", "quantity", "resource_name"]

_UNITS = {"m": 1e-3, "k": 1e3, "E": 1e18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_RESOURCES = {"ResourceCPU": "cpu", "ResourceMemory": "memory", "ResourcePods": "pods"}
_PER_UNIT = {"cpu": 1000.0, "memory": 2**-20}


def quantity(given: Any) -> float:
    """Return the number that a quantity says, such as 0.5 for 500m."""
    text = str(given.args[0] if isinstance(given, Made) else given)
    unit = next((unit for unit in sorted(_UNITS, key=len, reverse=True) if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)


def amount(given: Any, resource: str) -> int:
    """Return an amount of a resource in the units that are counted here."""
    if isinstance(given, Made) and given.function == "NewAmount":
        return int(given.args[0])
    return round(quantity(given) * _PER_UNIT.get(resource_name(resource), 1.0))


def resource_name(name: str) -> str:
    """Return a resource's name as users write it."""
    return _RESOURCES.get(name, str(name))
