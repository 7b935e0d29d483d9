"""What ``ddlsched validate`` says of a training trace of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlsched.errors import InputError
from ddlsched.io.reading import opened

__all__ = ["KIND", "found", "recognises"]

KIND = "training trace"
_BEGIN_BYTES = 65_536
_MOST_BYTES = 1 << 32


def recognises(path: Path) -> bool:
    """Return whether a file is a training trace, by its name and, of a JSON text, its first words."""
    name = path.name.lower()
    if name.removesuffix(".gz").endswith((".et", ".recording.json")) or name.endswith(".json.gz"):
        return True
    if not name.endswith(".json"):
        return False
    try:
        with opened(path, _MOST_BYTES) as file:
            begin = file.read(_BEGIN_BYTES)
        return b'"schemaVersion"' in begin or b'"traceEvents"' in begin
    except (OSError, InputError):
        return False  # whose reader says what is wrong


def found(path: Path) -> dict[str, Any]:
    """Return what is in a trace, by name.

    Raises
    ------
    InputError
        It is none, or damaged.
    """
    import numpy as np

    from ddlsched.training.recorded.reading import reader_of

    trace = reader_of(path)(path)
    communications = [each for step in trace.steps.values() for each in step.communications]
    computing_s = [step.compute_ns / 1e9 for step in trace.steps.values()]
    return {
        "rank": "not told" if trace.rank is None else trace.rank,
        "ranks": trace.num_ranks or "not told",
        "nodes": trace.nodes,
        "steps": len(trace.steps),
        "collectives": len(communications),
        "bytes_of_them": sum(each.input_bytes for each in communications),
        "groups": len({each.group for each in communications}),
        "computing_s": [float(value) for value in np.quantile(computing_s, [0.0, 0.5, 1.0])],
        **trace.notes,
    }
