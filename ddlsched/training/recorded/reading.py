"""Files of recorded training, told apart by their suffix; what ``ddlsched validate`` says of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddlsched.deferred import np
from ddlsched.errors import InputError
from ddlsched.training.recorded.chakra import read_chakra
from ddlsched.training.recorded.chakra_records import beginning, is_chakra_json
from ddlsched.training.recorded.collective_names import read_groups
from ddlsched.training.recorded.kineto import read_kineto
from ddlsched.training.recorded.merging import RecordedIteration, merged
from ddlsched.training.recorded.rank_steps import RankTrace
from ddlsched.training.recorded.recordings import SUFFIX, read_recording


def read_iteration(
    paths: Sequence[Path], *, num_ranks: int | None = None, groups: Path | None = None
) -> RecordedIteration:
    """Return the iteration that the traces of a job's ranks hold.

    Parameters
    ----------
    paths
        Chakra traces (``.et``), Kineto traces (``.json``) or recordings (``.recording.json``), also gzipped: of every
        rank, or of one for all.
    num_ranks
        Of the job, if one trace is given and does not tell.
    groups
        ASTRA-sim's file of communicator groups, for Chakra traces that name groups without their ranks.

    Raises
    ------
    InputError
        With file, node and field: a file or what it holds cannot be used.
    """
    if not paths:
        raise InputError("no trace is given; expected a file a rank, or one that stands for all")
    read = {reader_of(path) for path in paths}
    if len(read) > 1:
        raise InputError(f"{paths[-1]}: is of another format than {paths[0]}; expected files of one format")
    ranks = {} if groups is None else read_groups(groups)
    (reader,) = read
    traces = (reader(path) for path in paths)
    return merged([replace(trace, groups={**trace.groups, **ranks}) for trace in traces], num_ranks)


def reader_of(path: Path) -> Callable[[Path], RankTrace]:
    """Return what reads a file of this name; how a text of JSON begins tells what it is.

    Raises
    ------
    InputError
        The suffix is of no format.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".et"):
        return read_chakra
    if name.endswith(SUFFIX):
        return read_recording
    if name.endswith(".json"):
        return read_chakra if is_chakra_json(beginning(path)) else read_kineto
    expected = f"expected .et or .json (Chakra), .json (Kineto) or {SUFFIX} (ddlsched record), also with .gz"
    raise InputError(f"{path}: the suffix is of no format; {expected}")


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
