"""A checkpoint under another parallelism: planned, copied to a temporary folder, checked, then given its name."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ddlsched.errors import InputError
from ddlsched.reconfiguration.checkpoint import Checkpoint
from ddlsched.reconfiguration.collection import Allocation, TensorCollection
from ddlsched.reconfiguration.content import content_hashes, refuse_diverged, refuse_other_content
from ddlsched.reconfiguration.execution import NewArray, copied, new_arrays, num_threads
from ddlsched.reconfiguration.file_forms import RANK_FILES, FileForm, FilePlan
from ddlsched.reconfiguration.files_in_parts import Journal, OpenFiles, Target, refuse_full_disk
from ddlsched.reconfiguration.parallelism import Parallelism
from ddlsched.reconfiguration.plan import Plan, TensorPlan, plan
from ddlsched.reconfiguration.reading import Reading, Watch, no_watch

__all__ = ["Outcome", "planned", "refuse_destination", "reshard"]

_JOURNAL = "journal"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was done.

    Parameters
    ----------
    plan
        Who got what from whom.
    written_bytes
        Of all new files.
    resumed_bytes
        Of them, those that an earlier run, which was stopped, had written.
    plan_s, copy_s, verify_s
        Wall time of planning (reading descriptions included), of copying (until all is on disk), of checking hashes.
    """

    plan: Plan
    written_bytes: int
    resumed_bytes: int
    plan_s: float
    copy_s: float
    verify_s: float


def reshard(
    source: Path | str | Reading,
    destination: Path | str,
    *,
    to: Parallelism | TensorCollection,
    form: FileForm = RANK_FILES,
    lost: Collection[int] = (),
    host: int | None = None,
    peers: Mapping[int, str] | None = None,
    gpus_per_host: int = 0,
    stages: Sequence[int] = (),
    verify: bool = False,
    buffer_bytes: int = 64_000_000,
    threads: int = 0,
    watch: Watch = no_watch,
) -> Outcome:
    """Write a checkpoint under another parallelism.

    The new files are filled in a temporary folder beside ``destination``, which takes that name when all is on disk. A
    run that was stopped goes on where it was when it is started again with the same arguments.

    Parameters
    ----------
    source
        Folder of the old checkpoint, or a URL that fsspec knows; or a reading, such as that of a PyTorch distributed
        checkpoint (:func:`~ddlsched.reconfiguration.distributed_reading.read_distributed`). It is only read.
    destination
        Folder of the new one; it must not exist.
    to
        The new parallelism, or the same tensors as they are to be divided.
    form
        What is written: a checkpoint of this package, a PyTorch distributed checkpoint
        (:data:`~ddlsched.reconfiguration.distributed_writing.TORCH_FILES`), ...
    lost
        Old ranks whose files are gone; their state is taken from other replicas.
    host
        Write only this host's ranks; None: all.
    peers
        Where the old files of other hosts are, by host, if not in ``source``.
    gpus_per_host
        Devices of a host, before and after; 0: as the checkpoint says, and 8 at least for a new parallelism.
    stages
        The new stage of each layer; none given: as before if their number is, else even.
    verify
        Whether to read all back: each tensor's content hash must be the old one's, and old and new replicas equal.
    buffer_bytes
        Most memory for data on its way, all threads together.
    threads
        That copy at a time; 0: as many as suit the machine.
    watch
        Told the bytes copied and those in all.

    Raises
    ------
    InputError
        Something cannot be used: the message names the file and the tensor.
    """
    clock = _Clock()
    final = Path(destination)
    refuse_destination(final, source.place.name_of("").rstrip("/") if isinstance(source, Reading) else source)
    if host is not None and verify:
        raise InputError(f"host {host}: writes a part of the ranks, which verify cannot check; expected one of the two")
    reading = _opened(source, lost, peers, gpus_per_host)
    old = reading.checkpoint.collection
    new = dataclasses.replace(reading.checkpoint, collection=_collection(old, to, gpus_per_host, stages), files=())
    held = form.held(new)
    found = plan(old, held.collection, lost=reading.lost)
    plan_s = clock.lap_s()
    partial = final.parent / f".{final.name}.partial"
    writing = _Writing(reading, held, form, found, partial, host)
    resumed_bytes = writing.copy(buffer_bytes, threads or num_threads(), watch)
    copy_s = clock.lap_s()
    if verify:
        new = _verified(reading, new, form.reading(new, held, partial), partial, watch)
    verify_s = clock.lap_s()
    _finish(form.describe(new, held, partial), partial, final)
    return Outcome(
        plan=found,
        written_bytes=sum(writing.sizes.values()),
        resumed_bytes=resumed_bytes,
        plan_s=plan_s,
        copy_s=copy_s + clock.lap_s(),
        verify_s=verify_s,
    )


def planned(
    source: Path | str | Reading,
    to: Parallelism | TensorCollection,
    *,
    lost: Collection[int] = (),
    peers: Mapping[int, str] | None = None,
    gpus_per_host: int = 0,
    stages: Sequence[int] = (),
) -> Plan:
    """Return what :func:`reshard` would do, after the same checks of the old checkpoint."""
    reading = _opened(source, lost, peers, gpus_per_host)
    old = reading.checkpoint.collection
    return plan(old, _collection(old, to, gpus_per_host, stages), lost=reading.lost)


def _opened(
    source: Path | str | Reading, lost: Collection[int], peers: Mapping[int, str] | None, gpus_per_host: int
) -> Reading:
    if not isinstance(source, Reading):
        source = Reading.at(source, lost, peers, gpus_per_host=gpus_per_host)
    source.refuse_faulty_files()
    return source


class _Clock:
    """Wall time between laps."""

    def __init__(self) -> None:
        self.last_s = time.perf_counter()

    def lap_s(self) -> float:
        before_s, self.last_s = self.last_s, time.perf_counter()
        return self.last_s - before_s


def _collection(
    old: TensorCollection, to: Parallelism | TensorCollection, gpus_per_host: int, stages: Sequence[int]
) -> TensorCollection:
    if isinstance(to, TensorCollection):
        return to
    each = gpus_per_host or max(8, *Counter(old.allocation.hosts).values())
    new = old.resized(to, stages=stages, allocation=Allocation.packed(to.num_ranks, each))
    if stages and len(stages) != new.num_layers:
        raise InputError(f"the stage map has {len(stages)} layers; expected all {new.num_layers} of the model")
    return new


def refuse_destination(final: Path, source: Path | str) -> None:
    """Raise InputError unless ``final`` is a new name in an existing local folder, outside ``source``."""
    if ":/" in str(final):
        raise InputError(f"{final}: is no local folder; expected one, on each host its own")
    if final.exists() or final.is_symlink():
        raise InputError(f"{final}: exists; expected the name of a new folder")
    if not final.parent.is_dir():
        raise InputError(f"{final}: there is no folder {final.parent}; expected a name in an existing folder")
    if "://" not in str(source) and Path(source).resolve() in (final.resolve(), *final.resolve().parents):
        raise InputError(f"{final}: is in the source {source}, which is only read; expected a folder elsewhere")


class _Writing:
    """The temporary folder, and what is to be in it."""

    def __init__(
        self, reading: Reading, new: Checkpoint, form: FileForm, found: Plan, partial: Path, host: int | None
    ) -> None:
        self.reading, self.new, self.plan, self.partial = reading, new, found, partial
        hosts = new.collection.allocation.hosts
        self.ranks = [rank for rank in range(len(hosts)) if host in (None, hosts[rank])]
        if not self.ranks:
            raise InputError(f"host {host}: has no rank of {new.collection.parallelism}; expected one of {set(hosts)}")
        self.files: dict[int, FilePlan] = {rank: form.file_plan(new, rank) for rank in self.ranks}
        self.headers = {new.files[rank]: file.pieces[0] for rank, file in self.files.items()}
        self.sizes = {new.files[rank]: file.num_bytes for rank, file in self.files.items()}

    def copy(self, buffer_bytes: int, threads: int, watch: Watch) -> int:
        """Fill the temporary folder; returns the bytes that an earlier run had written."""
        needed = sum(self.sizes.values()) - _allocated_bytes(self.partial)
        refuse_full_disk(self.partial.parent, needed)
        self.partial.mkdir(exist_ok=True)
        with (
            closing(Journal(self.partial / _JOURNAL, self._fingerprint(buffer_bytes, threads))) as journal,
            closing(OpenFiles(self.partial, self.headers, self.sizes)) as files,
        ):
            done = copied(self._arrays(), files, journal, buffer_bytes=buffer_bytes, threads=threads, watch=watch)
            self._write_pieces(files)
            return done

    def _write_pieces(self, files: OpenFiles) -> None:
        """Write what is between the arrays."""
        between = [(rank, at, piece) for rank, file in self.files.items() for at, piece in file.pieces.items() if at]
        for rank, at, piece in between:
            files.write([Target(self.new.files[rank], at)], 0, memoryview(piece), "archive")
        if between:
            files.flush()

    def _arrays(self) -> list[NewArray]:
        return [array for tensor in self.plan.tensors for array in self._of_tensor(tensor)]

    def _of_tensor(self, tensor: TensorPlan) -> Iterator[NewArray]:
        name = tensor.tensor.name

        def target_of(rank: int) -> Target | None:
            return Target(self.new.files[rank], self.files[rank].entries[name].begin) if rank in self.files else None

        return new_arrays(tensor, lambda rank: self.reading.source(rank, name), target_of)

    def _fingerprint(self, *settings: int) -> str:
        """Return what the contents of the temporary folder follow from, as a hash."""
        reading = self.reading
        versions = [reading.place_of(rank).version(reading.checkpoint.files[rank]) for rank in reading.survivors]
        parts = (reading.checkpoint.text(), self.new.text(), sorted(reading.lost), self.ranks, versions, settings)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _allocated_bytes(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.iterdir()) if folder.is_dir() else 0


def _verified(reading: Reading, new: Checkpoint, written: Reading, partial: Path, watch: Watch) -> Checkpoint:
    """Return the new description, with all hashes, if the new files hold what the old ones were saved with."""
    expected = dict(reading.checkpoint.sha256)
    if set(expected) != set(new.collection.by_name):
        expected = content_hashes(reading, watch=watch) | expected
    try:
        refuse_diverged(reading)
        refuse_other_content(written, expected, watch=watch)
    except InputError:
        shutil.rmtree(partial)
        raise
    return dataclasses.replace(new, sha256=expected)


def _finish(descriptions: Sequence[Path], partial: Path, final: Path) -> None:
    """Give the folder its name when the descriptions, the last of its files, are on disk."""
    (partial / _JOURNAL).unlink()
    for path in descriptions:
        _sync(path)
    _sync(partial)
    try:
        partial.rename(final)
    except OSError as error:
        raise InputError(f"{final}: cannot be made of {partial} ({error.strerror}); expected a new folder") from None
    _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
