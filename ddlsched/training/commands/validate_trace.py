"""What ``ddlsched validate`` says of a training trace of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlsched.training.recorded.chakra_records import beginning, is_chakra_json

__all__ = ["KIND", "found", "recognises"]

KIND = "training trace"


def recognises(path: Path) -> bool:
    """Return whether a file is a training trace, by its name and, of a JSON text, its first words."""
    name = path.name.lower()
    if name.removesuffix(".gz").endswith((".et", ".recording.json")) or name.endswith(".json.gz"):
        return True
    if not name.endswith(".json"):
        return False
    begin = beginning(path)
    return b'"schemaVersion"' in begin or b'"traceEvents"' in begin or is_chakra_json(begin)


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
