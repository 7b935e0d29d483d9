"""A checkpoint under another parallelism: planned, copied to a temporary folder, checked, then given its name."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.content import Digest
from ddlsched.checkpoints.execution import BATCHES_VERSION, chunk_bytes_of, copied, new_arrays, num_threads
from ddlsched.checkpoints.file_forms import RANK_FILES, FileForm, FilePlan
from ddlsched.checkpoints.gathering import NewArray
from ddlsched.checkpoints.partial_folder import (
    OpenFiles,
    PartialFolder,
    Target,
    allow_open_files,
    claimed,
    refuse_full_disk,
)
from ddlsched.checkpoints.plan import ReshardPlan, TensorPlan, plan
from ddlsched.checkpoints.reading import Reading, Watch, no_watch
from ddlsched.checkpoints.tensors import total_bytes
from ddlsched.checkpoints.verification import Verification
from ddlsched.errors import InputError
from ddlsched.io.files import writable


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
        Wall time of planning (reading descriptions included), of copying (until all is on disk), of checking hashes
        once all is copied; most are checked before.
    """

    plan: ReshardPlan
    written_bytes: int
    resumed_bytes: int
    plan_s: float
    copy_s: float
    verify_s: float


def reshard(
    source: Path | str | Reading,
    destination: Path | str,
    *,
    to: StoredParallelism | TensorCollection,
    form: FileForm = RANK_FILES,
    lost: Collection[int] = (),
    host: int | None = None,
    peers: Mapping[int, str] | None = None,
    gpus_per_host: int = 0,
    stages: Sequence[int] = (),
    verify: bool = False,
    digest: Digest = "xxh3",
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
        checkpoint (:func:`~ddlsched.checkpoints.distributed_reading.read_distributed`). It is only read.
    destination
        Folder of the new one; it must not exist.
    to
        The new parallelism, or the same tensors as they are to be divided.
    form
        What is written: a checkpoint of this package, a PyTorch distributed checkpoint
        (:data:`~ddlsched.checkpoints.distributed_writing.TORCH_FILES`), ...
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
    digest
        The hash for that; it must also be the one that the old checkpoint records, if it records it.
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
    refuse_destination(final, source.only_read if isinstance(source, Reading) else source)
    if host is not None and verify:
        raise InputError(f"host {host}: writes a part of the ranks, which verify cannot check; expected one of the two")
    if not isinstance(source, Reading):
        source = Reading.at(source, lost, peers, gpus_per_host=gpus_per_host)
    reading = source
    _open_files(reading)
    old = reading.checkpoint.collection
    new = dataclasses.replace(reading.checkpoint, collection=_collection(old, to, gpus_per_host, stages), files=())
    partial = final.parent / f".{final.name}.partial"
    _refuse_too_much(reading, new.collection, form, partial, host)
    held = form.held(new)
    allow_open_files(old.num_ranks + held.collection.num_ranks)
    found = plan(old, held.collection, lost=reading.lost)
    plan_s = clock.lap_s()
    writing = _Writing(reading, held, form, found, host, chunk_bytes_of(buffer_bytes))
    writing.refuse_full_disk(partial)
    with claimed(partial, writing.fingerprint(), writing.sizes) as folder:
        with (
            _unless_changed(reading, folder),
            writing.opened(folder) as files,
            _verification(writing, new, folder, digest if verify else None) as verification,
            writing.copied(files, folder, threads or num_threads(), watch, verification) as resumed_bytes,
        ):
            copy_s = clock.lap_s()
            if verification is not None:  # While the last batches are on their way to the disk.
                hashes: dict[str, Any] = {digest: _hashes(verification, folder, watch)}
                new = dataclasses.replace(new, **hashes)
            verify_s = clock.lap_s()
        folder.begin_descriptions()
        folder.finish(final, form.describe(new, held, partial))
    return Outcome(
        plan=found,
        written_bytes=sum(writing.sizes.values()),
        resumed_bytes=resumed_bytes,
        plan_s=plan_s,
        copy_s=copy_s + clock.lap_s(),
        verify_s=verify_s,
    )


def planned(
    reading: Reading, to: StoredParallelism, *, gpus_per_host: int = 0, stages: Sequence[int] = ()
) -> ReshardPlan:
    """Return what :func:`reshard` would do, after the same checks of the old checkpoint."""
    _open_files(reading)
    old = reading.checkpoint.collection
    return plan(old, _collection(old, to, gpus_per_host, stages), lost=reading.lost)


def _open_files(reading: Reading) -> None:
    """Refuse an old checkpoint whose files are not there, or not as it describes them."""
    allow_open_files(reading.checkpoint.collection.num_ranks)
    reading.refuse_faulty_files()


def _refuse_too_much(reading: Reading, new: TensorCollection, form: FileForm, partial: Path, host: int | None) -> None:
    """Raise InputError at once, before a plan for very many ranks, if their files cannot be."""
    hosts = new.allocation.hosts
    num_files = sum(host in (None, of_rank) for of_rank in hosts)
    allow_open_files(reading.checkpoint.collection.num_ranks + num_files)
    if host is None:
        least_bytes = _least_bytes(new) if form is RANK_FILES else total_bytes(new.tensors)
        refuse_full_disk(partial.parent, least_bytes - _allocated_bytes(partial))


def _least_bytes(collection: TensorCollection) -> int:
    """Return what all ranks' files hold at least: tensors that replicas do not share out are in each."""
    dp, ep = collection.parallelism.dp, collection.parallelism.ep
    least_bytes = 0
    for tensor in collection.tensors:
        is_shared_out = bool(tensor.flat) or any(cut.axis == "data" for cut in tensor.cuts)
        least_bytes += tensor.num_bytes * (1 if is_shared_out else dp // (ep if tensor.over_experts else 1))
    return least_bytes


class _Clock:
    """Wall time between laps."""

    def __init__(self) -> None:
        self.last_s = time.perf_counter()

    def lap_s(self) -> float:
        before_s, self.last_s = self.last_s, time.perf_counter()
        return self.last_s - before_s


def _collection(
    old: TensorCollection, to: StoredParallelism | TensorCollection, gpus_per_host: int, stages: Sequence[int]
) -> TensorCollection:
    if isinstance(to, TensorCollection):
        return to
    each = gpus_per_host or max(8, *Counter(old.allocation.hosts).values())
    new = old.resized(to, stages=stages, allocation=StoredRegion.packed(to.num_ranks, each))
    if stages and len(stages) != new.num_layers:
        raise InputError(f"the stage map has {len(stages)} layers; expected the model's {new.num_layers}")
    return new


def refuse_destination(final: Path, source: Path | str) -> None:
    """Raise InputError unless ``final`` is a new name in an existing writable local folder, outside ``source``."""
    if ":/" in str(final):
        raise InputError(f"{final}: is no local folder; expected one, on each host its own")
    if final.exists() or final.is_symlink():
        raise InputError(f"{final}: exists; expected the name of a new folder")
    if not final.parent.is_dir():
        raise InputError(f"{final}: there is no folder {final.parent}; expected a name in an existing folder")
    if "://" not in str(source) and Path(source).resolve() in (final.resolve(), *final.resolve().parents):
        raise InputError(f"{final}: is in the source {source}, which is only read; expected a folder elsewhere")
    with writable(final, "a writable folder"):
        tempfile.TemporaryFile(dir=final.parent).close()


class _Writing:
    """What is to be in the temporary folder."""

    def __init__(
        self, reading: Reading, new: Checkpoint, form: FileForm, found: ReshardPlan, host: int | None, chunk_bytes: int
    ) -> None:
        self.reading, self.new, self.form = reading, new, form
        self.plan, self.chunk_bytes = found, chunk_bytes
        hosts = new.collection.allocation.hosts
        self.ranks = [rank for rank in range(len(hosts)) if host in (None, hosts[rank])]
        if not self.ranks:
            raise InputError(f"host {host}: has no rank of {new.collection.parallelism}; expected one of {set(hosts)}")
        self.files: dict[int, FilePlan] = {rank: form.file_plan(new, rank) for rank in self.ranks}
        self.sizes = {new.files[rank]: file.num_bytes for rank, file in self.files.items()}

    def refuse_full_disk(self, partial: Path) -> None:
        """Raise InputError if the files do not fit beside what an earlier run has written of them."""
        refuse_full_disk(partial.parent, sum(self.sizes.values()) - _allocated_bytes(partial))

    @contextmanager
    def opened(self, folder: PartialFolder) -> Iterator[OpenFiles]:
        """Yield the files in the temporary folder, with all that is between the arrays."""
        with closing(OpenFiles(folder.path, folder.directory, self.sizes)) as files:
            self._write_pieces(files)
            yield files

    @contextmanager
    def copied(
        self, files: OpenFiles, folder: PartialFolder, threads: int, watch: Watch, verification: Verification | None
    ) -> Iterator[int]:
        """Fill the files; yields the bytes that an earlier run had written, and waits for the disk."""
        settings: dict[str, Any] = {"chunk_bytes": self.chunk_bytes, "threads": threads, "finished": _ignored}
        if verification is not None:
            settings |= {"finished": verification.begin, "written": verification.written}
        with copied(self._arrays(), files, folder.journal, watch=watch, **settings) as resumed_bytes:
            yield resumed_bytes

    def _write_pieces(self, files: OpenFiles) -> None:
        """Write what is between the arrays."""
        for rank, file in self.files.items():
            for at, piece in file.pieces.items():
                files.write([Target(self.new.files[rank], at)], 0, [memoryview(piece)], "archive")

    def _arrays(self) -> list[NewArray]:
        return [array for tensor in self.plan.tensors for array in self._of_tensor(tensor)]

    def _of_tensor(self, tensor: TensorPlan) -> Iterator[NewArray]:
        name = tensor.tensor.name

        def target_of(rank: int) -> Target | None:
            return Target(self.new.files[rank], self.files[rank].entries[name].begin) if rank in self.files else None

        return new_arrays(tensor, lambda rank: self.reading.source(rank, name), target_of)

    def fingerprint(self) -> str:
        """Return what the contents of the temporary folder follow from, as a hash."""
        reading = self.reading
        versions = [reading.place_of(rank).version(reading.checkpoint.files[rank]) for rank in reading.survivors]
        parts = (
            reading.checkpoint.text(),
            self.new.text(),
            sorted(reading.lost),
            self.ranks,
            versions,
            self.chunk_bytes,
            BATCHES_VERSION,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _allocated_bytes(folder: Path) -> int:
    if folder.is_symlink() or not folder.is_dir():
        return 0
    return sum(file.lstat().st_blocks * 512 for file in folder.iterdir())


def _ignored(_names: Sequence[str]) -> None:
    """Take no note."""


@contextmanager
def _verification(
    writing: _Writing, new: Checkpoint, folder: PartialFolder, digest: Digest | None
) -> Iterator[Verification | None]:
    """Yield what checks the new files as they are filled; None without a digest."""
    if digest is None:
        yield None
        return
    folder.begin_descriptions()
    written = writing.form.reading(new, writing.new, folder.path)
    with closing(Verification(writing.reading, written, digest)) as verification:
        yield verification


def _hashes(verification: Verification, folder: PartialFolder, watch: Watch) -> dict[str, str]:
    """Return all content hashes, if the new files hold what the old ones were saved with, and these still do."""
    try:
        found = verification.hashes(watch)
        verification.refuse_other_sources(found)
        return found
    except InputError:
        folder.remove()
        raise


@contextmanager
def _unless_changed(reading: Reading, folder: PartialFolder) -> Iterator[None]:
    """Refuse old files that changed meanwhile, which is also why something else may be wrong with them."""
    try:
        yield
    except InputError:
        _refuse_changed(reading, folder)
        raise
    _refuse_changed(reading, folder)


def _refuse_changed(reading: Reading, folder: PartialFolder) -> None:
    try:
        reading.refuse_changes()
    except InputError:
        folder.remove()
        raise
