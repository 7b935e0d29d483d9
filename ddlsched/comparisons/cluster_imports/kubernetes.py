"""What files of Kubernetes hold, as ``kubectl get -o yaml`` or ``-o json`` prints it: objects, GPUs, times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ddlsched.cluster.cluster import Server
from ddlsched.errors import InputError
from ddlsched.io.files import read_bytes
from ddlsched.workload.traces.traced import TracedJob

_MOST_BYTES = 256 << 20
_DEFAULT_MEMORY_MB = 80_000.0
_MIB_MB = 1.048576
_ANNOTATION = "ddlsched.io/"
HOSTNAME = "kubernetes.io/hostname"
"""The label of a node's name: as a level, that of servers."""


def objects_of(path: Path) -> list[dict[str, Any]]:
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


def _objects_in(file: Path) -> Iterator[dict[str, Any]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents = list(yaml.load_all(read_bytes(file, _MOST_BYTES), Loader=loader))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); expected a file of kubectl") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{file}: is no YAML ({str(error).splitlines()[0]}); expected what kubectl prints") from None
    for document in documents:
        items = document.get("items", [document]) if isinstance(document, dict) else []
        yield from (each for each in items if isinstance(each, dict) and "kind" in each)


def of_kind(objects: Sequence[dict[str, Any]], kind: str, group: str = "") -> list[dict[str, Any]]:
    """Return the objects of a kind, whose API's group begins as told."""
    found = [each for each in objects if each["kind"] == kind]
    return [each for each in found if str(each.get("apiVersion", "")).startswith(group)]


def name_of(found: Mapping[str, Any]) -> str:
    """Return an object's name."""
    name = _mapping(found, "metadata").get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"{found.get('kind')}: has no metadata.name; expected one")
    return name


def spec_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an object is to be."""
    return _mapping(found, "spec")


def _mapping(found: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = found.get(field) or {}
    if not isinstance(value, Mapping):
        raise InputError(f"{found.get('kind', 'an object')}: {field} is {value!r}; expected fields")
    return value


def told_number(found: Mapping[str, Any], name: str) -> float | None:
    """Return what an annotation ``ddlsched.io/NAME`` says, such as ``duration-s``."""
    text = _mapping(_mapping(found, "metadata"), "annotations").get(_ANNOTATION + name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InputError(f"{name_of(found)}: annotation {_ANNOTATION}{name} is {text!r}; expected a number") from None


def told_job(found: Mapping[str, Any], span: tuple[float | None, float | None], **more: Any) -> TracedJob:
    """Return a job of what its object tells, its id, its arrival and for how long it ran, and of ``more``.

    ``span`` is when it began and ended, seconds since 1970, where known; an annotation goes before it.
    """
    (begin_s, end_s), told_s, meta = span, told_number(found, "duration-s"), found["metadata"]
    if told_s is None and begin_s is not None and end_s is not None and end_s > begin_s:
        told_s = end_s - begin_s
    return TracedJob(
        job_id=f"{meta.get('namespace', '')}/{name_of(found)}".lstrip("/"),
        arrival_s=seconds_of(meta.get("creationTimestamp")) or 0.0,
        duration_s=math.nan if told_s is None else told_s,
        **more,
    )


def seconds_of(text: Any) -> float | None:
    """Return a time as seconds since 1970; None if there is none."""
    if isinstance(text, datetime):
        return text.timestamp()
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        raise InputError(f"time {text!r}: is none; expected such as 2025-05-01T10:00:00Z") from None


def gpus_of_resources(resources: Mapping[str, Any] | None) -> int:
    """Return how many GPUs a list of resources has, of all makers."""
    found = [value for name, value in (resources or {}).items() if name.endswith("/gpu") or name == "gpu"]
    try:
        return sum(int(float(str(value))) for value in found)
    except ValueError:
        raise InputError(f"GPUs are {found}; expected whole numbers") from None


def gpus_of_pods(count: int, template: Mapping[str, Any]) -> int:
    """Return the GPUs of so many pods of a template."""
    containers = _mapping(template, "spec").get("containers") or []
    each = [_mapping(container, "resources") for container in containers]
    return count * sum(gpus_of_resources(one.get("requests") or one.get("limits")) for one in each)


def priorities_of(objects: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the value of each priority class."""
    kinds = ("PriorityClass", "WorkloadPriorityClass")
    return {name_of(each): int(each.get("value", 0)) for kind in kinds for each in of_kind(objects, kind)}


def servers_of(
    objects: Sequence[dict[str, Any]], kinds: Mapping[str, Mapping[str, Any]], levels: Sequence[str] = ()
) -> tuple[Server, ...]:
    """Return the nodes that have GPUs, with their units of the levels, those of a block and rack side by side.

    Parameters
    ----------
    objects
        All of a cluster's.
    kinds
        The labels by which nodes have a kind of GPU; none if kinds do not matter.
    levels
        Labels of the levels of the topology, from the widest.
    """
    nodes = [(_mapping(_mapping(each, "metadata"), "labels"), each) for each in of_kind(objects, "Node")]
    nodes.sort(key=lambda pair: [str(pair[0].get(level, "")) for level in levels])
    servers = []
    for labels, node in nodes:
        gpus = gpus_of_resources(_mapping(node, "status").get("allocatable"))
        mib = labels.get("nvidia.com/gpu.memory")
        memory_mb = _DEFAULT_MEMORY_MB if mib is None else float(mib) * _MIB_MB
        fitting = [kind for kind, wanted in kinds.items() if all(labels.get(k) == v for k, v in wanted.items())]
        if gpus and (fitting or not kinds):
            kind, units = fitting[0] if fitting else None, _units(name_of(node), labels, levels)
            servers.append(Server(gpus=gpus, gpu_memory_mb=memory_mb, gpu_kind=kind, levels=units))
    return tuple(servers)


def _units(name: str, labels: Mapping[str, Any], levels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return a node's units, from the narrowest level; it is one by itself of a level of which it has no label."""
    parts = [str(labels.get(level) or name) for level in levels]
    units = [(level, "/".join(parts[: place + 1])) for place, level in enumerate(levels)]
    return tuple(unit for unit in reversed(units) if unit[0] != HOSTNAME)
