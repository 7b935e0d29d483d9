"""Files of clusters: tables of servers, matrices of throughputs, and tenants (YAML or JSON, never executed).

A table of servers is CSV: a row a server, or a row a kind with a count. Columns: ``gpus, gpu_memory_mb`` and
optionally ``servers`` (how many like this, 1 if left out), ``relative_speed`` (1 if left out), ``nic_gbps`` (the
topology's if left out), ``gpu_kind`` (for a table of throughputs), ``exclusive`` (1 where a GPU has one job at a time,
the same in every row; 0 if left out) and ``level NAME`` (the server's unit of a level, from the narrowest level on, in
place of the topology's levels).

A matrix of throughputs is CSV with a row a model (column ``model``) and a column a kind of GPU, or JSON with an object
a model, in it a number a kind.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

from ddlsched.cluster.cluster import MAX_GPUS, Cluster, Server, Throughputs
from ddlsched.cluster.tenants import Preemption, Queue, Quota, Tenants
from ddlsched.errors import InputError, abbreviated, says_unknown_arguments
from ddlsched.io.files import read_bytes, replacing
from ddlsched.io.tables import (
    as_yaml,
    cell_number,
    cell_whole,
    csv_rows,
    located,
    parsed_json,
    read_text,
    readable,
    refuse_fields,
)
from ddlsched.network.topology import Topology

REQUIRED = ("gpus", "gpu_memory_mb")
NUMBERS = ("gpu_memory_mb", "relative_speed", "nic_gbps")
OPTIONAL = ("servers", *NUMBERS[1:], "gpu_kind", "exclusive")
_LEVEL = "level "


@says_unknown_arguments
def read_cluster(path: str | Path, *, topology: Topology | str = "star", exclusive: bool = False) -> Cluster:
    """Read a table of servers: CSV with the columns of :class:`Server` and optionally ``servers`` and ``exclusive``.

    The cluster is exclusive if ``exclusive`` or the table says so.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    servers, told = readable(Path(path), "a table of servers (CSV)", _read)
    return Cluster(servers=servers, topology=topology, exclusive=exclusive or told)


def _read(path: Path) -> tuple[tuple[Server, ...], bool]:
    servers: list[Server] = []
    told: bool | None = None
    levels = [name for name in _header(path) if name.startswith(_LEVEL)]
    for where, row in csv_rows(path, REQUIRED, (*OPTIONAL, *levels)):
        told = _exclusive(where, row, told)
        count = cell_whole(where, "servers", row["servers"], MAX_GPUS) if row.get("servers") else 1
        servers += [_server(where, row)] * count
        if len(servers) > MAX_GPUS:
            raise InputError(f"{where}, column servers: {len(servers)} servers so far; expected at most {MAX_GPUS}")
    if not servers:
        raise InputError(f"{path}: has a header only; expected at least one server")
    return tuple(servers), bool(told)


def _exclusive(where: str, row: dict[str, Any], before: bool | None) -> bool:
    """Return what a row says of the whole cluster; ``before`` is what the rows above said."""
    told = bool(row.get("exclusive")) and cell_whole(where, "exclusive", row["exclusive"], at_most=1, at_least=0) == 1
    if before not in (None, told):
        raise InputError(f"{where}, column exclusive: is {int(told)}; expected the {int(not told)} of the rows above")
    return told


def _server(where: str, row: dict[str, Any]) -> Server:
    numbers = {name: cell_number(where, name, row[name]) for name in NUMBERS if row.get(name)}
    if "gpu_memory_mb" not in numbers:
        raise InputError(f"{where}, column gpu_memory_mb: is empty; expected a number of MB > 0")
    gpus = cell_whole(where, "gpus", row["gpus"], MAX_GPUS)
    kind = row.get("gpu_kind") or None
    levels = tuple((name.removeprefix(_LEVEL), unit) for name, unit in row.items() if name.startswith(_LEVEL))
    for level, unit in levels:
        if not unit or not level or " " in level or ":" in level:
            what = f"column {_LEVEL}{level}: is {unit!r}; expected a unit of a level without spaces and colons"
            raise InputError(f"{where}, {what}")
    return located(where, lambda: Server(gpus=gpus, gpu_kind=kind, levels=levels, **numbers))


def _header(path: Path) -> list[str]:
    rows = csv.reader(io.StringIO(read_text(path), newline=""))
    return [name.strip() for name in next((cells for cells in rows if cells), [])]


def read_throughputs(path: str | Path, reference_kind: str | None = None) -> Throughputs:
    """Read a matrix of throughputs; an empty cell is a pair that is missing.

    Raises
    ------
    InputError
        With file, row, column, value and what is expected.
    """
    read = _read_json if Path(path).suffix.lower() == ".json" else _read_csv
    values = readable(Path(path), "a table of throughputs (CSV or JSON)", read)
    return Throughputs(values=tuple(values), reference_kind=reference_kind, source=str(path))


def throughputs_of(given: Throughputs | str | Path | None, reference_kind: str | None) -> Throughputs | None:
    """Return the throughputs that are given, or of a file, with the reference kind in place of their own.

    Raises
    ------
    InputError
        A reference kind without throughputs; or as :func:`read_throughputs`.
    """
    if given is None:
        if reference_kind is not None:
            raise InputError(f"reference_kind is {reference_kind!r}; expected throughputs as well")
        return None
    if not isinstance(given, Throughputs):
        return read_throughputs(given, reference_kind)
    return given if reference_kind is None else replace(given, reference_kind=reference_kind)


def _read_csv(path: Path) -> list[tuple[str, str, float]]:
    kinds = [name for name in _header(path) if name != "model"]
    rows = list(csv_rows(path, ("model",), kinds))
    if not kinds or not rows:
        raise InputError(f"{path}: has no throughputs; expected a header with model and kinds, and a row a model")
    return [
        (row["model"], kind, _throughput(where, kind, row[kind])) for where, row in rows for kind in kinds if row[kind]
    ]


def _throughput(where: str, kind: str, cell: str) -> float:
    value = cell_number(where, kind, cell)
    if not 0 < value < inf:
        raise InputError(f"{where}, column {kind}: is {cell}; expected a throughput > 0")
    return value


def _read_json(path: Path) -> list[tuple[str, str, float]]:
    table = parsed_json(read_text(path), str(path), "an object a model")
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise InputError(f"{path}: expected an object with an object a model, in it a number a kind")
    values = []
    for model, row in table.items():
        for kind, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
                raise InputError(f"{path}, model {model!r}, kind {kind!r}: is {value!r}; expected a throughput > 0")
            values.append((model, kind, float(value)))
    return values


_MOST_BYTES = 1 << 20
_QUOTA = ("gpus", "borrowing_limit", "lending_limit")
_PREEMPTION = ("within_queue", "reclaim", "borrow", "borrow_max_priority")
_QUEUE = ("name", "parent", "quotas", *_QUOTA, "weight", "order", "preemption")


def read_tenants(path: str | Path) -> Tenants:
    """Read a file with a list ``queues`` of the fields of :class:`~ddlsched.cluster.tenants.Queue`.

    ``gpus``, ``borrowing_limit`` and ``lending_limit`` may stand beside the name in place of ``quotas: {any: ...}``.

    Raises
    ------
    InputError
        With file, queue, field, value and what is expected.
    """
    return readable(Path(path), "a file of queues (YAML or JSON)", _tenants)


def tenants_of(given: Tenants | str | Path | None) -> Tenants | None:
    """Return the tenants that are given, or those of a file."""
    if given is None or isinstance(given, Tenants):
        return given
    if isinstance(given, str | Path):
        return read_tenants(given)
    raise InputError(f"queues is {given!r}; expected ddlsched.Tenants(...) or a file")


def _tenants(path: Path) -> Tenants:
    import yaml

    with as_yaml(path, "'queues:' and a list"):
        document = yaml.safe_load(read_bytes(path, _MOST_BYTES).decode("utf-8-sig"))
    rows = document.get("queues") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not rows or len(document) > 1:
        raise InputError(f"{path}: is {abbreviated(document)}; expected 'queues:' and a list of queues, nothing else")
    return located(str(path), lambda: Tenants(queues=tuple(_queue(n, row) for n, row in enumerate(rows, start=1))))


def _queue(number: int, row: Any) -> Queue:
    where = f"queue {number}"
    fields = _fields(where, row, _QUEUE)
    if not isinstance(fields.get("name"), str) or not fields["name"].strip():
        raise InputError(f"{where}: name is {abbreviated(fields.get('name'))}; expected a text")
    where = f"queue {fields['name']!r}"
    own = {name: fields.pop(name) for name in _QUOTA if name in fields}
    if own and "quotas" in fields:
        raise InputError(f"{where}: has {', '.join(own)} beside quotas; expected one of the two")
    quotas = _fields(f"{where}, field quotas", fields.pop("quotas", {"any": own} if own else {}))
    kinds = {kind: _fields(f"{where}, quota {kind}", told, _QUOTA) for kind, told in quotas.items()}
    told = _fields(f"{where}, field preemption", fields.pop("preemption", {}), _PREEMPTION)
    made = located(where, lambda: {kind: Quota(**quota) for kind, quota in kinds.items()})
    return Queue(quotas=made, preemption=located(where, lambda: Preemption(**told)), **fields)


def _fields(where: str, row: Any, known: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return an object's fields; refuse one that is not known, if any are."""
    if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
        raise InputError(f"{where}: is {abbreviated(row)}; expected fields{' ' if known else ''}{', '.join(known)}")
    refuse_fields(where, row, (), known or tuple(row))
    return dict(row)


def plain_values(tenants: Tenants) -> dict[str, Any]:
    """Return tenants as a file has them, without what is as by default."""
    return {"queues": [_plain(queue) for queue in tenants.queues]}


def _plain(queue: Queue) -> dict[str, Any]:
    usual = asdict(Queue(name=""))
    told = {name: value for name, value in asdict(queue).items() if value != usual[name]}
    for name, others in (("preemption", asdict(Preemption())), *((kind, asdict(Quota())) for kind in queue.quotas)):
        inside = told if name == "preemption" else told["quotas"]
        if name in inside:
            inside[name] = {field: value for field, value in inside[name].items() if value != others[field]}
    return told


def write_tenants(tenants: Tenants, path: Path) -> None:
    """Write a file that :func:`read_tenants` reads; raise InputError if it cannot be written."""
    import yaml

    with replacing(path, "queues") as file:
        file.write_text(yaml.safe_dump(plain_values(tenants), sort_keys=False), encoding="utf-8")
