"""Files of tenants: YAML or JSON, parsed and never executed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlsched.cluster.tenants import Preemption, Queue, Quota, Tenants
from ddlsched.errors import InputError, did_you_mean
from ddlsched.io.reading import read_bytes
from ddlsched.io.tables import abbreviated, located, readable

__all__ = ["plain_values", "read_tenants", "tenants_of", "write_tenants"]

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
    return readable(Path(path), "a file of queues (YAML or JSON)", _read)


def tenants_of(given: Tenants | str | Path | None) -> Tenants | None:
    """Return the tenants that are given, or those of a file."""
    if given is None or isinstance(given, Tenants):
        return given
    if isinstance(given, str | Path):
        return read_tenants(given)
    raise InputError(f"queues is {given!r}; expected ddlsched.Tenants(...) or a file")


def _read(path: Path) -> Tenants:
    import yaml

    try:
        document = yaml.safe_load(read_bytes(path, _MOST_BYTES).decode("utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: is no YAML ({str(error).splitlines()[0]}); expected 'queues:' and a list") from None
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
    return located(
        where,
        lambda: Queue(
            quotas={kind: Quota(**quota) for kind, quota in kinds.items()}, preemption=Preemption(**told), **fields
        ),
    )


def _fields(where: str, row: Any, known: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return an object's fields; refuse one that is not known, if any are."""
    if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
        raise InputError(f"{where}: is {abbreviated(row)}; expected fields{' ' if known else ''}{', '.join(known)}")
    for name in row:
        if known and name not in known:
            raise InputError(f"{where}: unknown field {name!r}.{did_you_mean(name, known)}")
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
    """Write a file that :func:`read_tenants` reads."""
    import yaml

    path.write_text(yaml.safe_dump(plain_values(tenants), sort_keys=False), encoding="utf-8")
