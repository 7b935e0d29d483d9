"""What a change of a small checkpoint says and needs: times, bytes, limits, and what it goes by."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_jobs import assert_holds, stored

from ddlsched.checkpoints import execution, resharding, verification
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, StoredRegion, TensorCollection
from ddlsched.checkpoints.content import WrittenRange
from ddlsched.checkpoints.distributed_writing import TORCH_FILES
from ddlsched.checkpoints.file_forms import RANK_FILES, FileForm
from ddlsched.checkpoints.formats import foreign_reading
from ddlsched.checkpoints.locations import location_of
from ddlsched.checkpoints.partial_folder import PartialFolder
from ddlsched.checkpoints.reading import PartsReading, Reading, Replicas, Source, no_watch, whole_parts
from ddlsched.checkpoints.resharding import Outcome, planned, reshard
from ddlsched.checkpoints.safetensors_files import Entry
from ddlsched.checkpoints.tensors import Cut, Layout, Piece, Tensor, dense_layout
from ddlsched.errors import InputError

TENSORS = (
    Tensor(name="cut", shape=(4, 6), dtype="F32", cuts=(Cut(dim=1),), places=(0,)),
    Tensor(name="whole", shape=(5,), dtype="U8", places=(1,)),
)
JOB = TensorCollection(tensors=TENSORS, parallelism=StoredParallelism(tp=2))
HOSTS = StoredRegion(devices=(0, 1, 2, 3), hosts=(0, 0, 1, 1))


def test_times_are_those_between_the_steps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", JOB)
    times = iter([1.0, 2.0, 4.0, 8.0, 16.0])
    monkeypatch.setattr(resharding, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    found = reshard(folder / "a", folder / "b", to=StoredParallelism())
    assert (found.plan_s, found.copy_s, found.verify_s) == (1.0, 2.0 + 8.0, 4.0)
    size = (folder / "b" / "rank_00000.safetensors").stat().st_size
    assert (found.written_bytes, found.resumed_bytes) == (size, 0)


def test_what_is_left_out_of_a_change() -> None:
    def left_out(function: Callable[..., Any]) -> dict[str, Any]:
        given = inspect.signature(function).parameters.values()
        return {parameter.name: parameter.default for parameter in given if parameter.default is not parameter.empty}

    everywhere = {"gpus_per_host": 0, "stages": ()}
    assert left_out(planned) == everywhere
    assert left_out(Reading.at) == {"gpus_per_host": 0, "lost": (), "peers": None}
    assert left_out(reshard) == everywhere | {
        "form": RANK_FILES, "lost": (), "host": None, "peers": None, "verify": False, "digest": "xxh3",
        "buffer_bytes": 64_000_000, "threads": 0, "watch": no_watch,
    }  # fmt: skip


@pytest.mark.parametrize(("threads", "made"), [(0, 5), (2, 2)])
def test_as_many_threads_copy_as_are_asked_for_or_suit_the_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch, threads: int, made: int
) -> None:
    asked: list[int] = []
    pool = execution.ThreadPoolExecutor
    monkeypatch.setattr(resharding, "num_threads", lambda: 5)
    monkeypatch.setattr(execution, "ThreadPoolExecutor", lambda number: asked.append(number) or pool(number))  # type: ignore[func-returns-value]
    stored(folder / "a", JOB)
    reshard(folder / "a", folder / "b", to=StoredParallelism(), threads=threads)
    assert asked == [made, 1]  # One brings batches to the disk.


def test_the_same_tensors_are_divided_as_the_other_collection_says(folder: Path) -> None:
    wholes = stored(folder / "a", JOB)
    region = StoredRegion(devices=(7, 3), hosts=(2, 0))
    to = dataclasses.replace(JOB.resized(StoredParallelism(pp=2), stages=(1, 0), allocation=region), flat_multiple=5)
    reshard(folder / "a", folder / "b", to=to)
    assert Checkpoint.read(folder / "b").collection == to
    assert_holds(folder / "b", wholes)


def test_what_a_temporary_folder_follows_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that decides which bytes are in which batch: with another version of them, nothing is gone on with."""
    stored(folder / "a", dataclasses.replace(JOB, parallelism=StoredParallelism(tp=2, dp=2), allocation=HOSTS))
    found: list[str] = []

    def watch(what: str, done: int, total: int) -> None:
        found.append((folder / ".b.partial" / "journal").read_text().splitlines()[0])

    reshard(
        folder / "a", folder / "b", to=StoredParallelism(dp=2), lost=[3, 0], host=1, gpus_per_host=1,
        buffer_bytes=24 * 100, watch=watch,
    )  # fmt: skip
    old = Reading.at(folder / "a", gpus_per_host=1).checkpoint
    new = Checkpoint(collection=old.collection.resized(
        StoredParallelism(dp=2), allocation=StoredRegion.packed(2, 1)
    ))  # fmt: skip
    versions = [location_of(folder / "a").version(f"rank_0000{rank}.safetensors") for rank in (1, 2)]
    parts = (old.text(), new.text(), [0, 3], [1], versions, 100, 2)
    assert set(found) == {hashlib.sha256(repr(parts).encode()).hexdigest()}


def test_a_plan_alone_is_of_files_that_are_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(resharding, "allow_open_files", asked.append)
    stored(folder / "a", JOB)
    reading = Reading.at(folder / "a")
    assert planned(reading, StoredParallelism(dp=9)).new.allocation.hosts == (0,) * 8 + (1,)
    assert asked == [2]
    os.truncate(folder / "a" / "rank_00001.safetensors", 90)
    with pytest.raises(InputError, match=r"rank_00001\.safetensors: "):
        planned(Reading.at(folder / "a"), StoredParallelism())


class StoppedError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("form", [RANK_FILES, TORCH_FILES])
@pytest.mark.parametrize("moment", ["checking", "finish"])
def test_a_run_that_was_stopped_at_its_end_has_noted_its_descriptions_and_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, form: FileForm, moment: str
) -> None:
    wholes = stored(folder / "a", JOB)

    def stop(*what: Any) -> None:
        if moment in ("finish", what[0]):
            raise StoppedError

    def run(**more: Any) -> Outcome:
        return reshard(folder / "a", folder / "b", to=StoredParallelism(), form=form, **more)

    with monkeypatch.context() as patched:
        if moment == "finish":
            patched.setattr(PartialFolder, "finish", stop)
        with pytest.raises(StoppedError):
            run(**{} if moment == "finish" else {"verify": True, "watch": stop})
    lines = (folder / ".b.partial" / "journal").read_text().splitlines()
    assert sorted(lines[1:]) == ["batch 1", "descriptions"]
    done = run(verify=True)
    assert done.resumed_bytes == sum(tensor.num_bytes for tensor in TENSORS)
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    if form is RANK_FILES:
        assert_holds(folder / "b", wholes)


@pytest.mark.parametrize("file", ["rank_00001.safetensors", "checkpoint.json"])
def test_an_old_file_that_is_replaced_at_the_end_is_refused(folder: Path, file: str) -> None:
    stored(folder / "a", JOB)

    def replace(what: str, done: int, total: int) -> None:
        shutil.copy2(folder / "a" / file, folder / "new")
        (folder / "new").replace(folder / "a" / file)

    with pytest.raises(
        InputError, match=rf"a/{file}: has changed while it was read; expected a checkpoint that nobody"
    ):
        reshard(folder / "a", folder / "b", to=StoredParallelism(), watch=replace)
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_a_tensor_is_at_least_in_each_file_that_needs_it() -> None:
    """Of 24 bytes each: on each of six replicas, on three of its experts, and once where replicas share it out."""
    tensors = (
        Tensor(name="replicas", shape=(6,), dtype="F32"),
        Tensor(name="experts", shape=(6,), dtype="F32", cuts=(Cut(dim=0, axis="expert"),)),
        Tensor(name="flat", shape=(6,), dtype="F32", flat="f"),
        Tensor(name="data", shape=(6,), dtype="F32", cuts=(Cut(dim=0, axis="data"),)),
        Tensor(name="parts", shape=(6,), dtype="F32", cuts=(Cut(dim=0),)),
    )
    for number, copies in enumerate((6, 3, 1, 1, 6)):
        job = TensorCollection(tensors=tensors[number : number + 1], parallelism=StoredParallelism(tp=2, dp=6, ep=2))
        assert resharding._least_bytes(job) == 24 * copies


def test_blocks_of_a_folder_count_and_links_do_not(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a").write_bytes(bytes(10_000))
    (tmp_path / "part" / "b").write_bytes(bytes(1))
    (tmp_path / "link").symlink_to("part")
    blocks = sum((tmp_path / "part" / name).stat().st_blocks for name in "ab")
    found = [resharding._allocated_bytes(tmp_path / name) for name in ("part", "link", "none", "part/a")]
    assert found == [512 * blocks, 0, 0, 0]
    assert blocks >= 10_000 / 512


def test_what_is_to_be_written_counts_without_what_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", JOB)
    needed: list[int] = []
    monkeypatch.setattr(resharding, "refuse_full_disk", lambda where, size: needed.append(size))
    monkeypatch.setattr(resharding, "_allocated_bytes", lambda _: 7)
    reshard(folder / "a", folder / "b", to=StoredParallelism(dp=2))
    files = sum(file.stat().st_size for file in (folder / "b").glob("rank_*"))
    assert needed == [2 * (96 + 5) - 7, files - 7]


def test_files_of_both_sides_may_be_open_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", JOB)
    asked: list[int] = []
    monkeypatch.setattr(resharding, "allow_open_files", asked.append)
    reshard(folder / "a", folder / "b", to=StoredParallelism(dp=3))
    assert asked == [2, 5, 5]
    asked.clear()
    with pytest.raises(InputError, match=r"host 1: has no rank of tp=1,pp=1,dp=3; expected one of {0}"):
        reshard(folder / "a", folder / "c", to=StoredParallelism(dp=3), host=1)
    assert asked == [2, 2, 5]


@pytest.mark.parametrize(
    ("hosts", "gpus_per_host", "new_hosts"),
    [((0, 0), 0, (0,) * 8 + (1,)), ((0, 0), 4, (0,) * 4 + (1,) * 4 + (2,)), ((0,) * 9, 0, (0,) * 9)],
)
def test_new_hosts_have_as_many_devices_as_told_or_eight_or_as_before(
    folder: Path, hosts: tuple[int, ...], gpus_per_host: int, new_hosts: tuple[int, ...]
) -> None:
    region = StoredRegion(devices=tuple(range(len(hosts))), hosts=hosts)
    old = TensorCollection(tensors=TENSORS, parallelism=StoredParallelism(dp=len(hosts)), allocation=region)
    stored(folder / "a", old)
    found = planned(Reading.at(folder / "a"), StoredParallelism(dp=9), gpus_per_host=gpus_per_host)
    assert found.new.allocation.hosts == new_hosts


def test_a_map_of_stages_is_as_long_as_the_model(folder: Path) -> None:
    stored(folder / "a", JOB)
    assert planned(Reading.at(folder / "a"), StoredParallelism(pp=2), stages=(1, 0)).new.stages == (1, 0)
    for stages in ((1,), (1, 0, 1)):
        with pytest.raises(InputError, match=f"the stage map has {len(stages)} layers; expected the model's 2"):
            planned(Reading.at(folder / "a"), StoredParallelism(pp=2), stages=stages)


def test_a_destination_beside_a_source_of_a_similar_name_is_fine(folder: Path) -> None:
    wholes = stored(folder / "a", JOB)
    reshard(folder / "a", folder / "a2", to=StoredParallelism(), threads=1, buffer_bytes=48)
    assert_holds(folder / "a2", wholes)
    (folder / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match="link: exists; expected the name of a new folder"):
        reshard(folder / "a", folder / "link", to=StoredParallelism())


@pytest.mark.parametrize(("lost", "message"), [([2], "lost rank 2: expected ranks from 0 to 1"), ([-1, 5], "rank -1")])
def test_lost_ranks_are_ranks(folder: Path, lost: list[int], message: str) -> None:
    stored(folder / "a", JOB)
    with pytest.raises(InputError, match=message):
        Reading.at(folder / "a", lost=lost)
    assert Reading.at(folder / "a", lost=[1]).survivors == [0]
    assert Reading.at(folder / "a", lost=[0, 1]).survivors == []


def test_files_are_where_their_hosts_are(folder: Path) -> None:
    stored(folder / "a", JOB)
    (folder / "peer").mkdir()
    (folder / "a" / "rank_00001.safetensors").rename(folder / "peer" / "rank_00001.safetensors")
    reading = Reading.at(folder / "a", peers={1: str(folder / "peer")}, gpus_per_host=1)
    assert reading.checkpoint.collection.allocation.hosts == (0, 1)
    assert [reading.source(rank, "cut").name for rank in (0, 1)] == [
        str(folder / "a" / "rank_00000.safetensors"), str(folder / "peer" / "rank_00001.safetensors"),
    ]  # fmt: skip
    assert reading.only_read == str(folder / "a")
    assert reading.touched_ranks() == []
    (folder / "peer" / "rank_00001.safetensors").chmod(0o640)
    assert reading.touched_ranks() == [1]
    os.truncate(folder / "peer" / "rank_00001.safetensors", 9)
    with pytest.raises(InputError, match=r"peer/rank_00001.safetensors: has changed while it was read"):
        reading.refuse_changes()


def test_ranges_of_bytes_follow_from_elements(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    source = Source(location_of(tmp_path), "file", Entry("U16", (3, 4), 10))
    piece = Piece((0, 0), (2, 3), 5, (4, 1))
    assert source.byte_range(piece) == (20, 34)
    assert bytes(source.data(piece)) == bytes(range(20, 34))
    assert [row.tolist() for row in source.view(piece)] == [
        [low + 256 * (low + 1) for low in (begin, begin + 2, begin + 4)] for begin in (20, 28)
    ]
    assert whole_parts("F32", (0, 3), location_of(tmp_path), "file", 7) == []
    (part,) = whole_parts("F32", (2, 3), location_of(tmp_path), "file", 7)
    assert (part.layout, part.sources[0].entry) == (dense_layout((2, 3), (), ()), Entry("F32", (2, 3), 7))


def test_parts_of_a_tensor_in_one_file_have_numbers_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(50)))
    place = location_of(tmp_path)

    def part(first: int, *files: str) -> Replicas:
        layout = Layout((2,), (Piece((first,), (2,), 0, (1,)),))
        return Replicas(layout, tuple(Source(place, file, Entry("U8", (2,), 9 + first)) for file in files))

    tensors = tuple(Tensor(name=name, shape=(4,), dtype="U8") for name in "ab")
    known = Checkpoint(
        collection=TensorCollection(tensors=tensors, parallelism=StoredParallelism(dp=2)),
        sha256={"a": "1", "b": "2"}, xxh3={"b": "3"}, paths={"a": ("x",)}, iteration=4,
    )  # fmt: skip
    parts = {"a": [part(0, "f", "g"), part(2, "f")], "b": [part(0, "f")]}
    reading = PartsReading(known, [(tensor, parts[tensor.name]) for tensor in tensors], place)
    assert reading.checkpoint.files == ("f", "g", "f")
    assert {tensor.name: [of.sources for of in parts] for tensor, parts in reading.held()} == {
        name: [of.sources for of in found] for name, found in parts.items()
    }
    held = reading.checkpoint.collection
    assert [shard.ranks for shard in held.shards(tensors[0])] == [(0, 1), (2,)]
    assert (held.parallelism, held.resized(StoredParallelism(tp=3)).parallelism.tp) == (StoredParallelism(dp=3), 3)
    assert PartsReading.of(reading) is reading
    new = reading.renewed([(Tensor(name="c", shape=(4,), dtype="U8"), parts["a"])], {"a": "c"})
    assert (new.described.sha256, new.described.xxh3, new.described.paths) == ({"c": "1"}, {}, {})
    assert (new.described.iteration, new.job.parallelism.dp, new.checkpoint.files) == (4, 2, ("f", "g", "f"))


def test_nothing_is_a_checkpoint_too(tmp_path: Path) -> None:
    reading = PartsReading.undivided([], location_of(tmp_path), iteration=3)
    assert reading.checkpoint.collection.parallelism == StoredParallelism()
    assert (reading.held(), reading.described.iteration) == ([], 3)
    assert (reading.num_left_out, reading.survivors) == (0, [0])


def test_files_of_parts_are_on_one_host(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(9))
    tensor = Tensor(name="w", shape=(9,), dtype="U8")
    reading = PartsReading.undivided(
        [(tensor, whole_parts("U8", (9,), location_of(tmp_path), "f", 0))], location_of(tmp_path)
    )
    region = reading.checkpoint.collection.allocation
    assert (region.devices, region.hosts) == ((0,), (0,))


def test_a_format_is_known_by_its_files(folder: Path) -> None:
    stored(folder / "a", JOB)
    assert foreign_reading(folder / "a") is None
    assert foreign_reading(folder) is None
    (folder / "a" / ".metadata").write_bytes(b"no metadata")
    assert foreign_reading(folder / "a") is None  # checkpoint.json comes first.
    with pytest.raises(InputError, match=r"a/\.metadata: cannot be read"):
        foreign_reading(folder / "a", like=folder / "a")
    (folder / "file").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"file/\.metadata: cannot be read"):
        foreign_reading(folder / "file", like=folder / "a")
    with pytest.raises(InputError, match="is no archive of a tensor"):
        foreign_reading(folder / "file")
    with pytest.raises(InputError, match=r"/megatron/\.metadata: tensor cut is missing"):
        foreign_reading(Path(__file__).parent / "megatron", like=folder / "a")


@pytest.mark.parametrize(
    ("apart", "num_bytes", "forks"), [(True, 1 << 28, True), (True, (1 << 28) - 1, False), (False, 1 << 28, False)]
)
def test_much_is_checked_in_another_process(
    monkeypatch: pytest.MonkeyPatch, apart: bool, num_bytes: int, forks: bool
) -> None:
    made: list[str] = []
    pool: Any = SimpleNamespace(shutdown=lambda **_: None)
    monkeypatch.setattr(verification, "_one_process", lambda _: made.append("process") or pool)
    monkeypatch.setattr(verification, "as_many_threads_as_processors", lambda: made.append("threads") or pool)
    verification.Checks(lambda name, ranges: None, num_bytes, apart=apart).close()
    assert made == ["process" if forks else "threads"]


def test_bytes_that_all_files_hold_are_without_padding() -> None:
    layout = Layout((4, 2), (Piece((0, 0), (3, 2), 0, (2, 1)),))
    other = Layout((4, 2), (Piece((3, 0), (1, 2), 0, (2, 1)),))
    source: Any = SimpleNamespace(file="f")
    parts = [Replicas(layout, (source, source)), Replicas(other, (source,))]
    tensor = Tensor(name="w", shape=(4, 2), dtype="F32")
    assert verification._held_bytes(tensor, parts) == 4 * (2 * 6 + 2)
    assert verification._kind(tensor, parts, parts[:1]) == (
        (4, 2), "F32", ((layout, ("f", "f")), (other, ("f",))), ((layout, ("f", "f")),),
    )  # fmt: skip


def test_digests_are_taken_of_what_is_copied_and_only_of_what_has_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder / "a", JOB)
    Checkpoint(collection=JOB, xxh3={"whole": "0" * 32}).write_description(folder / "a")
    noted: dict[str, list[WrittenRange]] = {}
    begin = verification.Checks.begin

    def kept(self: Any, name: str, ranges: list[WrittenRange]) -> None:
        noted[name] = ranges
        begin(self, name, ranges)

    monkeypatch.setattr(verification.Checks, "begin", kept)
    with pytest.raises(InputError, match="tensor whole has content hash"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(), verify=True)
    assert {name: sum(found.high - found.low for found in ranges) for name, ranges in noted.items()} == {
        "cut": 96, "whole": 0,
    }  # fmt: skip
    noted.clear()
    with pytest.raises(InputError, match="tensor whole has content hash"):
        reshard(folder / "a", folder / "c", to=StoredParallelism(dp=2), verify=True)
    assert sum(found.high - found.low for found in noted["cut"]) == 2 * 96
    noted.clear()
    reshard(folder / "a", folder / "d", to=StoredParallelism(), verify=True, digest="sha256")
    assert noted == {"cut": [], "whole": []}
