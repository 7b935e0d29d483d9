"""Imports public traces: files of a format in, a workload out, and an account of every row."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlsched.deferred import np, pa, pd, pq
from ddlsched.errors import InputError, says_unknown_arguments
from ddlsched.io.files import MOST_ROWS
from ddlsched.plugins import IMPORT_CONTENTION
from ddlsched.plugins.names import resolve
from ddlsched.workload.job import Workload
from ddlsched.workload.traces.columns import FORMATS, reader_of
from ddlsched.workload.traces.trace_files import sources
from ddlsched.workload.traces.trace_models import OF_REPORT, JobRule
from ddlsched.workload.traces.traced import Reader, Refusal, Selection, TracedJob, TraceSource
from ddlsched.workload.workload_files import refuse_suffix

if TYPE_CHECKING:
    from ddlsched.network.contention import ContentionModel


_WATCH_EVERY = 50_000
SUFFIXES = (".csv", ".parquet")
"""Of the tables that can be written in batches."""
_BATCH = 65_536
_NUMBERS = ("arrival_s", "duration_s", "compute_s", "time_limit_s")
_COUNTS = ("num_gpus", "iterations", "priority", "line")
_UNTOLD = ("user", "time_limit_s", "queue", "priority")


@dataclass(frozen=True, kw_only=True)
class ImportedTrace:
    """The jobs of a trace as a workload, and an account of its rows.

    Parameters
    ----------
    jobs
        The columns of a workload file, a row a job, in order of arrival.
    refused
        A row for each row of the trace that is no job: file, line, reason, found.
    report
        What was read, refused, left out, and how jobs were made; plain values for JSON.
    """

    jobs: pd.DataFrame
    refused: pd.DataFrame
    report: dict[str, Any] = field(repr=False)

    @cached_property
    def workload(self) -> Workload:
        """The jobs as a workload.

        Raises
        ------
        InputError
            No job is left.
        """
        self.refuse_empty()
        return Workload.from_frame(self.jobs)

    def refuse_empty(self) -> None:
        """Raise InputError if no job is left."""
        if self.jobs.empty:
            counts = self.report["refused"] | self.report["left_out"]
            why = "; ".join(f"{count:,} {reason}" for reason, count in counts.items()) or "the files hold no rows"
            raise InputError(f"no job of {self.report['rows']:,} rows is left ({why}); expected at least one")


@says_unknown_arguments
def import_trace(
    format_name: str,
    files: Sequence[str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    selection: Selection | None = None,
    contention: ContentionModel | str = IMPORT_CONTENTION,
    gpus_per_server: int = 4,
    seed: int = 1,
    watch: Callable[[int], None] | None = None,
) -> ImportedTrace:
    """Read files of a trace format and make training jobs of their rows, by the rule of :class:`JobRule`.

    Parameters
    ----------
    format_name
        One of :data:`~ddlsched.workload.traces.columns.FORMATS`.
    files
        Plain, ``.gz``, tar or zip archives; several are merged on one clock, and their ids carry the file's name (and
        its folder's, if an earlier file has the same name).
    columns
        For the format ``csv``, the names of a table's columns by what they tell, ``{"arrival_s": "SubmitTime"}``.
    selection
        Which jobs are wanted; all by default.
    contention, gpus_per_server, seed
        See :class:`~ddlsched.workload.traces.trace_models.JobRule`.
    watch
        Called now and then with the number of rows read.

    Raises
    ------
    InputError
        A file that cannot be read or is not of the format; a bad row is refused and counted instead.
    """
    selection = selection or Selection()
    rule = JobRule(contention=resolve("contention", contention), gpus_per_server=gpus_per_server, seed=seed)
    log = _Log(watch)
    opened = (source for file in files for source in sources(Path(file), FORMATS[format_name].members))
    log.read(reader_of(format_name, columns), opened)
    traced, left_out = selection.apply(log.frame())
    made = rule.apply(traced)
    too_large = traced.loc[made["refused"].to_numpy(), ["source", "line"]]
    for source, line in too_large.itertuples(index=False, name=None):
        log.refuse(source, Refusal(line, "too large", "comes later or takes more GPU time than a 64-bit clock holds"))
    kept = ~made["refused"]
    made = made[kept].reset_index(drop=True)
    account = _account(made, traced[kept.to_numpy()])
    constants = {"contention": repr(rule.contention), "gpus_per_server": gpus_per_server, "seed": seed}
    constants["scale"] = selection.scale
    report = {"format": format_name, **log.account(), "left_out": left_out, **account, "rule": constants}
    untold = [name for name in _UNTOLD if (made[name].isna() | (made[name] == 0)).all()]
    return ImportedTrace(jobs=made.drop(columns=[*OF_REPORT, *untold]), refused=log.refusals(), report=report)


def _account(made: pd.DataFrame, traced: pd.DataFrame) -> dict[str, Any]:
    """Return how jobs were made, and how far their times alone are from the traced durations."""
    duration_s = traced["duration_s"].to_numpy()
    told = duration_s > 0
    off_s = abs(made["alone_s"].to_numpy() - duration_s)
    # A job that is shorter than one iteration has one, and is told apart below.
    several = told & (made["iterations"].to_numpy() > 1)
    off_iterations = (off_s / made["alone_s"].to_numpy() * made["iterations"].to_numpy())[several]
    return {
        "jobs": len(made),
        "models": {str(name): int(count) for name, count in made["model"].value_counts().items()},
        "models_drawn": int(made["drawn"].sum()),
        "span_s": float(made["arrival_s"].max()) if len(made) else 0.0,
        "gpu_hours": float((made["alone_s"] * made["gpus"]).sum() / 3600),
        "alone_less_duration": {
            "jobs": int(told.sum()),
            "largest_s": float(off_s[told].max(initial=0.0)),
            "largest_iterations": float(off_iterations.max(initial=0.0)),
            "jobs_of_one_iteration": int((told & ~several).sum()),
            "off_by_more_than_1_percent": int((off_s[told] > 0.01 * duration_s[told]).sum()),
        },
    }


class _Log:
    """Jobs as columns, so that a million take little memory, and what was refused."""

    def __init__(self, watch: Callable[[int], None] | None) -> None:
        self.watch = watch
        self.names: list[str] = []
        self.stems: list[str] = []
        self.rows: list[int] = []
        self.notes: Counter[str] = Counter()
        self.refused: list[tuple[int, Refusal]] = []
        self.ids: list[str] = []
        self.sources = array("q")
        self.numbers = {name: array("d") for name in _NUMBERS} | {name: array("q") for name in _COUNTS}
        self.texts: dict[str, list[str | None]] = {"model": [], "user": [], "queue": []}
        self.interned: dict[str | None, str | None] = {}

    def read(self, reader: Reader, opened: Iterable[TraceSource]) -> None:
        for source in opened:
            stem = f"{source.folder}/{source.stem}" if source.stem in self.stems else source.stem
            if stem in self.stems or source.name in self.names:
                raise InputError(
                    f"{source.name}: is called like a file before it, and so is its folder; expected files that differ "
                    "in one of the names, to tell jobs apart"
                )
            self.names.append(source.name)
            self.stems.append(stem)
            self.rows.append(0)
            self._read_one(reader, source._replace(stem=stem))

    def _read_one(self, reader: Reader, source: TraceSource) -> None:
        number, seen = len(self.names) - 1, set[str]()
        for line, row in enumerate(reader(source), start=1):
            self.rows[number] += 1
            if sum(self.rows) > MOST_ROWS:
                raise InputError(f"{source.name}: has more than {MOST_ROWS:,} rows; expected at most that: give a part")
            if self.watch is not None and line % _WATCH_EVERY == 0:
                self.watch(sum(self.rows))
            if isinstance(row, Refusal):
                self.refuse(number, row)
            elif row.job_id in seen:
                self.refuse(
                    number, Refusal(row.line, "id occurs twice", f"id {row.job_id!r} is that of an earlier job")
                )
            else:
                seen.add(row.job_id)
                self._keep(number, row)

    def refuse(self, source: int, refusal: Refusal) -> None:
        self.refused.append((source, refusal))

    def _keep(self, source: int, job: TracedJob) -> None:
        self.ids.append(job.job_id)
        for name, numbers in self.numbers.items():
            numbers.append(getattr(job, name))
        self.sources.append(source)
        for name, texts in self.texts.items():
            text = getattr(job, name)
            texts.append(self.interned.setdefault(text, text))
        if job.note:
            self.notes[job.note] += 1

    def frame(self) -> pd.DataFrame:
        ids = self.ids
        if len(self.stems) > 1:
            ids = [f"{self.stems[source]}/{job_id}" for source, job_id in zip(self.sources, ids, strict=True)]
        columns: dict[str, Any] = {"job_id": pd.Series(ids, dtype=object)}
        columns |= {name: np.asarray(numbers) for name, numbers in self.numbers.items()}
        columns["source"] = np.asarray(self.sources)
        columns |= {name: pd.Series(texts, dtype=object) for name, texts in self.texts.items()}
        return pd.DataFrame(columns)

    def account(self) -> dict[str, Any]:
        return {
            "files": self._files(),
            "rows": sum(self.rows),
            "refused": dict(Counter(refusal.reason for _, refusal in self.refused).most_common()),
            "notes": dict(self.notes.most_common()),
        }

    def _files(self) -> list[dict[str, Any]]:
        refused = [Counter[str]() for _ in self.names]
        for source, refusal in self.refused:
            refused[source][refusal.reason] += 1
        return [
            {"file": name, "rows": rows, "jobs": rows - counts.total(), "refused": dict(counts.most_common())}
            for name, rows, counts in zip(self.names, self.rows, refused, strict=True)
        ]

    def refusals(self) -> pd.DataFrame:
        rows = [(self.names[source], *refusal) for source, refusal in self.refused]
        return pd.DataFrame(rows, columns=["file", "line", "reason", "found"])


def write_jobs(trace: ImportedTrace, path: Path) -> None:
    """Write a workload file, CSV or Parquet by the suffix; Parquet also keeps the report, under the key ``ddlsched``.

    Raises
    ------
    InputError
        The suffix is another, or no job is left.
    OSError
        The file cannot be written.
    """
    refuse_suffix(path, SUFFIXES)
    trace.refuse_empty()
    if path.suffix.lower() == ".csv":
        trace.jobs.to_csv(path, index=False, lineterminator="\n", chunksize=_BATCH)
    else:
        _write_parquet(trace, path)


def _write_parquet(trace: ImportedTrace, path: Path) -> None:
    texts = {"job_id", "model", "user", "queue"}
    whole = {"gpus", "iterations", "priority"}
    kinds = [pa.string() if name in texts else pa.int64() if name in whole else pa.float64() for name in trace.jobs]
    report = json.dumps(trace.report).encode()
    schema = pa.schema(list(zip(trace.jobs.columns, kinds, strict=True)), metadata={"ddlsched": report})
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, len(trace.jobs), _BATCH):
            batch = trace.jobs.iloc[start : start + _BATCH]
            writer.write_table(pa.Table.from_pandas(batch, schema=schema, preserve_index=False))


def write_refused(trace: ImportedTrace, path: Path) -> None:
    """Write the refused rows as CSV: file, line, reason, found; the header alone if there are none."""
    trace.refused.to_csv(path, index=False, lineterminator="\n")


COLUMNS = ("cause", "per", "per_1000_days", "takes", "least_gpus", "source")
_SIZES = (1, 8, 64, 512)
"""From how many GPUs on jobs are counted together."""
_NODE, _JOB = "NODE_FAIL", ("FAILED", "FAIL")
_DAY_S = 86_400.0


def failure_rows(
    format_name: str, files: Sequence[str | Path], columns: Mapping[str, str] | None = None
) -> list[tuple[str, str, float, str, int, str]]:
    """Return the rows of a table of causes, in the order of :data:`COLUMNS`.

    Jobs that lost a node (``NODE_FAIL``) count per GPU and day for which jobs held one, others that failed per job and
    day, from 1, 8, 64 and 512 GPUs on: what larger jobs have beyond smaller ones is a cause of its own. A job counts
    until it failed, where its trace tells that. ``columns`` are those of :func:`import_trace`.

    Raises
    ------
    InputError
        A file that cannot be read or is not of the format, or no job failed.
    """
    reader = reader_of(format_name, columns)
    opened = (source for file in files for source in sources(Path(file), FORMATS[format_name].members))
    jobs = (row for source in opened for row in reader(source) if isinstance(row, TracedJob))
    nodes, gpu_days, failed, job_days = _counted(jobs)
    said = f"{format_name}: {nodes} jobs lost a node and {sum(failed.values())} failed in {gpu_days:.0f} GPU-days"
    rows = [("node", "gpu", 1000 * nodes / gpu_days, "server", 1, said)] if nodes else []
    before = 0.0
    for place, size in enumerate(_SIZES):
        rate = 1000 * failed[place] / job_days[place] if job_days[place] else 0.0
        if rate > before:
            rows.append((f"failed-from-{size}-gpus", "job", rate - before, "job", size, said))
            before = rate
    if not rows:
        raise InputError(f"{said}; expected jobs whose state is {_NODE} or one of {', '.join(_JOB)}")
    return rows


def _counted(jobs: Iterable[TracedJob]) -> tuple[int, float, dict[int, int], dict[int, float]]:
    """Return how many lost a node, GPU-days, and by size how many others failed, and job-days."""
    nodes, gpu_days = 0, 0.0
    failed: dict[int, int] = defaultdict(int)
    job_days: dict[int, float] = defaultdict(float)
    for job in jobs:
        state = (job.note or "").removeprefix("state ").partition(", ")[0].upper()  # shares of a GPU are told behind
        place = bisect_right(_SIZES, job.num_gpus) - 1
        days = (job.failed_after_s if job.failed_after_s > 0 else job.duration_s) / _DAY_S
        if days > 0:  # a trace may not tell
            gpu_days += days * job.num_gpus
            job_days[place] += days
            nodes += state == _NODE
            failed[place] += state in _JOB
    return nodes, gpu_days, failed, job_days
