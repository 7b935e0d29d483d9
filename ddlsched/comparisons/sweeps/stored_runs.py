"""What is kept of a run, as bytes and as files that are whole or not there.

A run's file is Parquet: its table of jobs (:func:`ddlsched.comparisons.alone.job_metrics`), and under the
metadata key ``ddlsched`` a JSON object with
``inputs`` (what was simulated), ``summary`` (its metrics), ``samples`` (what the cluster did over time, by
column), ``most_jobs_on_a_gpu`` (at a time), ``door_counts`` (stops, moves and bytes) and, of ``simulate --run-out``,
``workload``: the workload's file, its suffix and its bytes, and ``stays``: of each stay that a placement chose its
job_id, when it began (nanoseconds) and its GPUs, as JSON (both zlib, base64). The process that asked for a sweep is the
only one that writes.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import secrets
import socket
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlsched.cluster.cluster import Cluster, Server, Throughputs
from ddlsched.cluster.disturbances import Disturbances, Outage
from ddlsched.cluster.failure_causes import FailureCause
from ddlsched.deferred import pa, pd, pq
from ddlsched.errors import InputError
from ddlsched.io.files import ABANDONED_S, MOST_BYTES, opened_parquet, read_bytes
from ddlsched.io.tables import located
from ddlsched.network.contention import EqualShare, Linear, MaxMin
from ddlsched.simulation import simulate
from ddlsched.workload.workload_files import workload_of

if TYPE_CHECKING:
    from ddlsched.engine.outcome import Window
    from ddlsched.engine.run_progress import RunWatcher
    from ddlsched.results.result import Result

_METADATA = b"ddlsched"
_RUN = "a run's file, of 'ddlsched simulate --run-out FILE.parquet'"
_SAMPLES = ("time_s", "busy_gpus")
_PLACEMENTS = ("job_id", "gpu", "server", "from_s", "to_s")


def run_bytes(
    result: Result,
    inputs: Mapping[str, Any],
    further: Mapping[str, float],
    workload: Path | None = None,
    *,
    stays: bool = False,
) -> bytes:
    """Return a run's file, with the stays that a placement chose if asked.

    ``further`` metrics join those of its summary, and the file ``workload`` its inputs.
    """
    from ddlsched.comparisons.alone import job_metrics
    from ddlsched.results.metrics import run_metrics
    from ddlsched.results.result import door_counts

    jobs = job_metrics(result)
    summary = {**result.summary(), **run_metrics(jobs), **further}
    described = {"inputs": inputs, "summary": summary, "samples": result.samples.to_dict("list")}
    if workload is not None:
        described["workload"] = [workload.suffix, _packed(read_bytes(workload))]
    if stays:
        jobs_of = result.workload
        placed = (stay for stay in result.finished.stays if stay.from_queue)
        kept = [(jobs_of[stay.job].job_id, stay.from_ns, stay.gpus) for stay in placed]
        described["stays"] = _packed(json.dumps(kept).encode())
    counts = {"most_jobs_on_a_gpu": result.most_jobs_on_a_gpu, "door_counts": door_counts(result)}
    return _parquet(jobs, described | counts)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _unpacked(text: str) -> bytes:
    return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_BYTES)


def placements_bytes(result: Result, inputs: Mapping[str, Any]) -> bytes:
    """Return the file of a run's placements."""
    return _parquet(result.placements, {"inputs": inputs})


def timeline_bytes(result: Result) -> bytes:
    """Return a recorded run's timeline, a file for https://ui.perfetto.dev."""
    from ddlsched.results.timeline import write_timeline

    with TemporaryDirectory() as folder:
        write_timeline(result, Path(folder) / "timeline.json")
        return (Path(folder) / "timeline.json").read_bytes()


def _parquet(frame: pd.DataFrame, described: Mapping[str, Any]) -> bytes:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), _METADATA: json.dumps(described)}
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_metadata(path: Path) -> dict[str, Any]:
    """Return what a run's file says of itself.

    Raises
    ------
    InputError
        It is no run's file.
    """
    with _as_run(path), opened_parquet(path) as file:
        metadata: dict[str, Any] = json.loads(file.schema_arrow.metadata[_METADATA])
    return metadata


def kept_workload(path: Path, folder: Path) -> Path | None:
    """Write the workload's file that a run's file holds, if it does, into a folder, and return it.

    Raises
    ------
    InputError
        It is no run's file.
    """
    kept = read_metadata(path).get("workload")
    if kept is None:
        return None
    with _as_run(path, "workload"):
        suffix, text = kept
        file = folder / f"workload{suffix}"
        file.write_bytes(_unpacked(text))
    return file


def read_stays(path: Path) -> dict[str, list[tuple[int, list[int]]]]:
    """Return when each job began each of its stays (nanoseconds) and on which GPUs, by job_id.

    Raises
    ------
    InputError
        It is no run's file, or one without stays.
    """
    kept = read_metadata(path).get("stays")
    if kept is None:
        raise InputError(f"{path}: does not say where its jobs were; expected a file of 'ddlsched simulate --run-out'")
    stays: dict[str, list[tuple[int, list[int]]]] = {}
    with _as_run(path, "stays"):
        for job_id, from_ns, gpus in json.loads(_unpacked(kept)):
            stays.setdefault(str(job_id), []).append((int(from_ns), [int(gpu) for gpu in gpus]))
    return stays


def read_samples(path: Path) -> pd.DataFrame:
    """Return what a run's cluster did over time: time_s and busy_gpus at least; as :func:`read_metadata`."""
    with _as_run(path, "samples"):
        samples = pd.DataFrame(dict(read_metadata(path)["samples"]), dtype=float)
    _refuse_missing(path, samples.columns, _SAMPLES)
    return samples


def read_jobs(path: Path, columns: Collection[str] | None = None) -> pd.DataFrame:
    """Return a run's table of jobs, or these columns of it; as :func:`read_metadata`."""
    with _as_run(path), opened_parquet(path) as file:
        if columns is not None:
            _refuse_missing(path, file.schema_arrow.names, columns)
        frame: pd.DataFrame = file.read(columns=None if columns is None else list(columns)).to_pandas()
    return frame


def read_placements(path: Path) -> pd.DataFrame:
    """Return a run's placements; as :func:`read_metadata`."""
    return read_jobs(path, _PLACEMENTS)


def is_damaged(path: Path) -> bool:
    """Return whether a kept file is cut short or overwritten, so that its run is to be done anew.

    Raises
    ------
    InputError
        It is a whole Parquet file but no run's, a folder, or cannot be opened.
    """
    try:
        with opened_parquet(path) as file:
            file.read()
            said = (file.schema_arrow.metadata or {}).get(_METADATA)
            json.loads(said or "{}")
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        if getattr(error, "errno", None):
            raise _no_run(path, error) from None
        return True
    if said is None:
        raise InputError(f"{path}: is a Parquet file but no run's; expected it elsewhere, as its run is kept there")
    return False


def _refuse_missing(path: Path, there: Collection[str], columns: Collection[str]) -> None:
    missing = [column for column in columns if column not in there]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}, so it is no run's; expected {_RUN}")


@contextmanager
def _as_run(path: Path, what: str = "") -> Iterator[None]:
    """Raise InputError where a file does not hold what a run's does; ``what`` is the part of it that is read."""
    try:
        yield
    except InputError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError, zlib.error) as error:
        raise _no_run(path, error, what) from None


def _no_run(path: Path, error: Exception, what: str = "") -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: no such file; expected a run's file")
    if path.is_dir():
        return InputError(f"{path}: is a folder; expected a run's file")
    if path.suffix != ".parquet":
        return InputError(
            f"{path}: is {f'a {path.suffix} file' if path.suffix else 'no Parquet file'}; expected {_RUN}"
        )
    why = ": ".join(filter(None, [what, (str(error).splitlines() or [type(error).__name__])[0]]))
    return InputError(f"{path}: is no run's file ({why}); the same 'ddlsched compare' does one that is damaged anew")


def store(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all, also if the process is killed or the machine stops.

    Raises
    ------
    InputError
        It cannot be written.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}.{_writer()}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); expected a writable file") from None


def remove_leftovers(folder: Path) -> None:
    """Delete the unfinished files of processes that are gone: of this machine, or a day old."""
    for part in folder.glob("*.part"):
        with suppress(OSError, ValueError):
            host, _, process = part.name.split(".")[-2].rpartition("-")
            here = host == _host() and not _is_alive(int(process))
            if here or time.time() - part.stat().st_mtime > ABANDONED_S:
                part.unlink()


def _writer() -> str:
    return f"{_host()}-{os.getpid()}"


def _host() -> str:
    return socket.gethostname().replace(".", "_")


def _is_alive(process: int) -> bool:
    try:
        with suppress(PermissionError):  # it is somebody else's
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


_REBUILT = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (Cluster, Server, Throughputs, Disturbances, FailureCause, Outage, Linear, EqualShare, MaxMin)
}
"""The classes whose instances a run's file may describe; nothing else is made from what a file says."""


def repeat(path: Path, *, timeline: bool | tuple[float, float] | Window, watch: RunWatcher | None = None) -> Result:
    """Simulate a run's file again, with a timeline; ``watch`` is told how far it is.

    A workload that the file holds is taken from there. Relative names are relative to the current folder, as they were
    when the run was made.

    Raises
    ------
    InputError
        It is no run's file; a policy was given as an instance, which a file cannot hold; or the outcome is
        another, because the workload's file or a source has changed.
    """
    inputs = read_metadata(path).get("inputs")
    if not isinstance(inputs, Mapping) or not {"workload", "seed", "options"} <= inputs.keys():
        raise InputError(f"{path}: does not say what was simulated; expected a run of 'ddlsched compare' or --run-out")
    options = {name: _rebuilt(path, name, value) for name, value in inputs["options"].items()}
    seed = inputs["seed"] or 0  # of a run in which nothing is random, none is kept
    where = f"{path}, whose relative names are those of the folder in which it was made"
    with TemporaryDirectory() as folder:
        kept = kept_workload(path, Path(folder))
        named = inputs["workload"] if kept is None else str(kept)
        workload = located(where, lambda: workload_of(named, seed))
    result = located(where, lambda: simulate(workload, seed=seed, watch=watch, **options | {"timeline": timeline}))
    _refuse_another_outcome(path, result.jobs, read_jobs(path))
    return result


def _rebuilt(path: Path, name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_rebuilt(path, name, part) for part in value)
    if not isinstance(value, Mapping):
        return value
    kind = _REBUILT.get(str(value.get("class")))
    if kind is None or not isinstance(value.get("holds"), Mapping):
        what = value.get("class", "something else")
        raise InputError(f"{path}: {name} was an instance of {what}; expected one given by name, which can be repeated")
    made = {field.name for field in dataclasses.fields(kind) if field.init}
    return kind(**{field: _rebuilt(path, name, part) for field, part in value["holds"].items() if field in made})


def _refuse_another_outcome(path: Path, now: pd.DataFrame, then: pd.DataFrame) -> None:
    same = len(now) == len(then) and now["job_id"].tolist() == then["job_id"].tolist()
    if not same or not np.array_equal(now["finish_s"], then["finish_s"], equal_nan=True):
        raise InputError(
            f"{path}: the same inputs now have another outcome; expected the workload's file, the policies' files "
            "and ddlsched to be as they were"
        )
