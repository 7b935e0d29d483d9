"""What files of Kubernetes hold, as ``kubectl get -o yaml`` or ``-o json`` prints it: objects, GPUs, times."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ddlsched.cluster.cluster import MAX_GPUS, Server
from ddlsched.errors import InputError, abbreviated
from ddlsched.io.files import read_bytes
from ddlsched.io.tables import as_yaml, located
from ddlsched.workload.traces.traced import TracedJob

_MOST_BYTES = 256 << 20
_MOST = 1 << 31
"""Of anything that is counted."""
_DEFAULT_MEMORY_MB = 80_000.0
_MIB_MB = 1.048576
_ANNOTATION = "ddlsched.io/"
HOSTNAME = "kubernetes.io/hostname"
"""The label of a node's name: as a level, that of servers."""

Span = tuple[float | None, float | None]
"""When a job began and ended, seconds since 1970, where known."""


class ObjectFields:
    """An object's fields; what one of them is refused for names the file, the object, the field and its value.

    Parameters
    ----------
    at
        Where they are; the name of one comes behind it.
    told
        Their values by name.
    """

    def __init__(self, at: str, told: dict[Any, Any]) -> None:
        self._at, self.told = at, told

    def fault(self, name: str, expected: str) -> InputError:
        """Return the error that a field is not as expected."""
        return InputError(f"{self._at}{name}: is {abbreviated(self.told.get(name))}; expected {expected}")

    def _checked(self, name: str, kind: Any, expected: str) -> Any:
        value = self.told.get(name)
        if not isinstance(value, kind | None):
            raise self.fault(name, expected)
        return value

    def fields(self, name: str) -> ObjectFields:
        """Return the fields within a field, which has none if it is not there."""
        return ObjectFields(f"{self._at}{name}.", self._checked(name, dict, "fields") or {})

    def rows(self, name: str) -> list[ObjectFields]:
        """Return the fields of each object of a list, which is empty if it is not there."""
        values = self._checked(name, list, "a list") or []
        listed = ObjectFields(self._at + name, {f"[{place}]": each for place, each in enumerate(values)})
        return [listed.fields(place) for place in listed.told]

    def text(self, name: str, default: str = "") -> str:
        """Return a text, or a number as one."""
        value = self._checked(name, str | int | float, "a text")
        if isinstance(value, int) and abs(value) > sys.maxsize:  # Python writes no more than 4,300 digits
            raise self.fault(name, "a text")
        return default if value is None else str(value)

    def needed(self, name: str) -> str:
        """Return a text that is there and not empty."""
        text = self.text(name)
        if not text:
            raise self.fault(name, "a text")
        return text

    def number(self, name: str, default: float, at_least: float = 0.0, at_most: float = _MOST) -> float:
        """Return a number, perhaps written in thousandths as ``500m``."""
        text, number = self.text(name, str(default)), math.nan
        with suppress(ValueError):
            number = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
        if not at_least <= number <= at_most:
            raise self.fault(name, f"a number from {at_least:g} to {at_most}")
        return number

    def whole(self, name: str, default: int = 0, at_least: int = 0, at_most: int = _MOST) -> int:
        """Return a whole number."""
        number = self.number(name, default, at_least, at_most)
        if not number.is_integer():
            raise self.fault(name, "a whole number")
        return int(number)

    def limit(self, name: str, at_least: int = 0) -> int | None:
        """Return a whole number; None if it is not there."""
        return None if self.told.get(name) is None else self.whole(name, at_least=at_least)

    def time_s(self, name: str) -> float | None:
        """Return a time, seconds since 1970; None if it is not there."""
        return located(f"{self._at}{name}", lambda: seconds_of(self.told.get(name)))


def objects_of(path: Path) -> list[ObjectFields]:
    """Return the objects of a file, or of all files .yaml, .yml and .json of a folder and those below it.

    Raises
    ------
    InputError
        A file that cannot be read or is neither YAML nor JSON, or a folder without any.
    """
    names = sorted(each for each in path.rglob("*") if each.suffix in (".yaml", ".yml", ".json"))
    files = names if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: holds no .yaml, .yml or .json; expected what kubectl get -o yaml prints")
    return [found for file in files for found in _objects_in(file)]


def _objects_in(file: Path) -> Iterator[ObjectFields]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with as_yaml(file, "what kubectl get -o yaml prints"):
        documents = list(yaml.load_all(read_bytes(file, _MOST_BYTES), Loader=loader))
    for document in (each for each in documents if isinstance(each, dict)):
        alone = ObjectFields(f"{file}: ", document)
        for each in alone.rows("items") if "items" in document else [alone]:
            if isinstance(each.told.get("kind"), str):
                meta = each.told.get("metadata")
                name = meta.get("name", "") if isinstance(meta, dict) else ""
                yield ObjectFields(f"{file}: {each.told['kind']} {abbreviated(name)}: ", each.told)


def of_kind(objects: Sequence[ObjectFields], kind: str, group: str = "") -> list[ObjectFields]:
    """Return the objects of a kind, whose API's group begins as told."""
    return [each for each in objects if each.told["kind"] == kind and each.text("apiVersion").startswith(group)]


def name_of(found: ObjectFields) -> str:
    """Return an object's name."""
    return found.fields("metadata").needed("name")


def told_number(found: ObjectFields, name: str) -> float | None:
    """Return what an annotation ``ddlsched.io/NAME`` says, such as ``duration-s``."""
    notes, name = found.fields("metadata").fields("annotations"), _ANNOTATION + name
    if notes.text(name).endswith("m"):  # thousandths of a quantity, but minutes of a time
        raise notes.fault(name, "a number without a unit")
    return None if notes.told.get(name) is None else notes.number(name, 0.0)


def told_job(found: ObjectFields, span: Span, **more: Any) -> TracedJob:
    """Return a job of what its object tells, its id, its arrival and for how long it ran, and of ``more``.

    An annotation of its duration goes before ``span``.
    """
    (begin_s, end_s), told_s, meta = span, told_number(found, "duration-s"), found.fields("metadata")
    if told_s is None and begin_s is not None and end_s is not None and end_s > begin_s:
        told_s = end_s - begin_s
    return TracedJob(
        job_id=f"{meta.text('namespace')}/{name_of(found)}".lstrip("/"),
        arrival_s=meta.time_s("creationTimestamp") or 0.0,
        duration_s=math.nan if told_s is None else told_s,
        **more,
    )


def seconds_of(text: Any) -> float | None:
    """Return a time as seconds since 1970; None if there is none."""
    try:
        moment = text if isinstance(text, datetime) else datetime.fromisoformat(str(text)) if text else None
        return None if moment is None else moment.timestamp()
    except (ValueError, OverflowError):
        raise InputError(f"time {abbreviated(text)}: is none; expected such as 2025-05-01T10:00:00Z") from None


def gpus_of_resources(resources: ObjectFields) -> int:
    """Return how many GPUs a list of resources has, of all makers."""
    names = [name for name in resources.told if str(name).endswith("/gpu") or name == "gpu"]
    return sum(resources.whole(name, at_most=MAX_GPUS) for name in names)


def gpus_of_pods(count: int, template: ObjectFields) -> int:
    """Return the GPUs of so many pods of a template."""
    each = [container.fields("resources") for container in template.fields("spec").rows("containers")]
    # Of what is no CPU and no memory, what is requested is what is limited; either may be left out.
    return count * sum(max(gpus_of_resources(one.fields(name)) for name in ("requests", "limits")) for one in each)


def priorities_of(objects: Sequence[ObjectFields]) -> dict[str, int]:
    """Return the value of each priority class."""
    kinds = ("PriorityClass", "WorkloadPriorityClass")
    return {name_of(each): each.whole("value", at_least=-_MOST) for kind in kinds for each in of_kind(objects, kind)}


def servers_of(
    objects: Sequence[ObjectFields], kinds: Mapping[str, Mapping[str, Any]], levels: Sequence[str], notes: list[str]
) -> tuple[Server, ...]:
    """Return the nodes with GPUs that take pods, with their units of levels, those of a block and rack side by side.

    Parameters
    ----------
    objects
        All of a cluster's.
    kinds
        The labels by which nodes have a kind of GPU; none if kinds do not matter.
    levels
        Labels of the levels of the topology, from the widest.
    notes
        Gets how many nodes take no pods.
    """
    told = of_kind(objects, "Node")
    nodes = [(each.fields("metadata").fields("labels"), each) for each in told if _takes_pods(each)]
    if lost := len(told) - len(nodes):
        notes.append(f"{lost} nodes left out, which take no pods: unschedulable, or not ready")
    nodes.sort(key=lambda pair: [pair[0].text(level) for level in levels])
    servers = []
    for labels, node in nodes:
        gpus = gpus_of_resources(node.fields("status").fields("allocatable"))
        memory_mb = labels.number("nvidia.com/gpu.memory", _DEFAULT_MEMORY_MB / _MIB_MB) * _MIB_MB
        fitting = [kind for kind, wanted in kinds.items() if all(labels.told.get(k) == v for k, v in wanted.items())]
        if gpus and (fitting or not kinds):
            kind, units = fitting[0] if fitting else None, _units(name_of(node), labels, levels)
            servers.append(Server(gpus=gpus, gpu_memory_mb=memory_mb, gpu_kind=kind, levels=units))
    return tuple(servers)


def _takes_pods(node: ObjectFields) -> bool:
    states = {each.text("type"): each.text("status") for each in node.fields("status").rows("conditions")}
    return states.get("Ready", "True") == "True" and not node.fields("spec").told.get("unschedulable")


def _units(name: str, labels: ObjectFields, levels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return a node's units, from the narrowest level; it is one by itself of a level of which it has no label."""
    parts = [labels.text(level) or name for level in levels]
    units = [(level, "/".join(parts[: place + 1])) for place, level in enumerate(levels)]
    return tuple(unit for unit in reversed(units) if unit[0] != HOSTNAME)
