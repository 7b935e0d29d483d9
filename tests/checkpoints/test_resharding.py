"""Real files resharded to any layout and back, bit by bit; stopped and gone on; from other hosts."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from small_jobs import (
    EXPERTS,
    GPT,
    LLAMA,
    assert_holds,
    collections,
    contents,
    odd_collections,
    random_tensors,
    stored,
    under,
    under_odd,
)
from tiers import examples

from ddlsched.checkpoints import execution
from ddlsched.checkpoints.arrays import part_of, view_of, write_checkpoint
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import DIGESTS, Digest, content_hashes, refuse_other_content
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.checkpoints.tensors import Cut, CutPart, Piece, Tensor
from ddlsched.errors import FaultyInputError, InputError


def job(model: StoredTransformer = GPT, sharding: str = "none", **degrees: int) -> TensorCollection:
    return TensorCollection(
        tensors=job_tensors(model, optimiser=Optimiser(sharding=sharding)), parallelism=StoredParallelism(**degrees)
    )


def assert_round_trip(old: TensorCollection, new: TensorCollection, buffer_bytes: int) -> None:
    """Assert that a job's files survive a change of parallelism and the way back, byte by byte."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        wholes = stored(folder / "a", old, iteration=3, dataset={"samples": 12})
        reshard(folder / "a", folder / "b", to=new, verify=True, buffer_bytes=buffer_bytes, threads=2)
        assert_holds(folder / "b", wholes)
        reading = Reading.at(folder / "b")
        for rank, held in enumerate(new.arrays):
            for name, layout in held.items():
                everything = Piece((), (layout.num_elements,), 0, (1,))
                # Padding, too.
                assert reading.source(rank, name).view(everything).tobytes() == part_of(wholes[name], layout).tobytes()
        reshard(folder / "b", folder / "c", to=old, buffer_bytes=buffer_bytes, threads=2)
        before, after = contents(folder / "a"), contents(folder / "c")
        described = [json.loads(files.pop("checkpoint.json")) for files in (before, after)]
        assert before == after
        assert described[0] == described[1] | {"xxh3": {}}


@pytest.mark.long
@settings(max_examples=examples(2, by_default=1))
@given(data=st.data(), buffer_bytes=st.sampled_from((100, 1 << 20)))
def test_transformers_survive_any_change_and_back(data: st.DataObject, buffer_bytes: int) -> None:
    old = data.draw(collections())
    assert_round_trip(old, data.draw(under(old)), buffer_bytes)


@pytest.mark.long
@settings(max_examples=examples(15, by_default=6))
@given(data=st.data(), buffer_bytes=st.sampled_from((8, 100, 1 << 20)))
def test_any_tensors_survive_any_change_and_back(data: st.DataObject, buffer_bytes: int) -> None:
    old = data.draw(odd_collections())
    assert_round_trip(old, data.draw(under_odd(old)), buffer_bytes)


@pytest.mark.long
def test_files_are_read_by_the_safetensors_library(folder: Path) -> None:
    stored(folder / "a", dataclasses.replace(job(tp=2, pp=2), tensors=job_tensors(GPT, dtype="F32")))
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4))
    collection = Checkpoint.read(folder / "b").collection
    for rank, held in enumerate(collection.arrays):
        arrays = load_file(folder / "b" / f"rank_{rank:05d}.safetensors")
        assert {name: array.shape for name, array in arrays.items()} == {n: layout.shape for n, layout in held.items()}


@pytest.mark.long
def test_what_is_not_in_tensors_is_carried_over(folder: Path) -> None:
    known = {"iteration": 77, "dataset": {"samples": 9856}, "random": {"seed": 5}, "model": {"kind": "gpt"}}
    stored(folder / "a", job(tp=2), **known)
    reshard(folder / "a", folder / "b", to=StoredParallelism(dp=3))
    found = Checkpoint.read(folder / "b")
    assert {name: getattr(found, name) for name in known} == known


@pytest.mark.long
def test_resharding_from_surviving_replicas(folder: Path) -> None:
    wholes = stored(folder / "a", job(tp=2, dp=2))
    for rank in (1, 2):
        (folder / "a" / f"rank_{rank:05d}.safetensors").unlink()
    with pytest.raises(InputError, match=r"rank_00001\.safetensors: cannot be read"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=2))
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=2), lost=[1, 2], verify=True)
    assert_holds(folder / "b", wholes)
    with pytest.raises(InputError, match="with ranks 1, 2, 3 lost, no replica of"):
        reshard(folder / "a", folder / "c", to=StoredParallelism(tp=2), lost=[1, 2, 3])
    with pytest.raises(InputError, match="lost rank 9: expected ranks from 0 to 3"):
        reshard(folder / "a", folder / "c", to=StoredParallelism(tp=2), lost=[9])


SLOW_RUN = """
import sys, time
from ddlsched.checkpoints import StoredParallelism, execution, partial_folder, reshard
execution._BATCH_BYTES = 4096
record = partial_folder.BatchJournal.record
def slow(self, batches):
    record(self, batches)
    print(self.done, flush=True)
    time.sleep(0.05)
partial_folder.BatchJournal.record = slow
reshard(sys.argv[1], sys.argv[2], to=StoredParallelism(tp=4, dp=2), threads=2)
"""


@pytest.mark.long
def test_a_killed_run_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = stored(folder / "a", job(tp=2, pp=2))
    before = contents(folder / "a")
    for batches in (2, 4):
        command = [sys.executable, "-c", SLOW_RUN, str(folder / "a"), str(folder / "b")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= batches:
                    break
            process.send_signal(signal.SIGKILL)
        assert not (folder / "b").exists()
        assert not (folder / ".b.partial" / "checkpoint.json").exists()
        with pytest.raises(InputError, match=r"checkpoint\.json: cannot be read"):
            Checkpoint.read(folder / ".b.partial")
    with pytest.raises(InputError, match="holds part of another change of parallelism"):
        reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4, dp=1))
    monkeypatch.setattr(execution, "_BATCH_BYTES", 4096)
    written: list[int] = []
    done = reshard(
        folder / "a", folder / "b", to=StoredParallelism(tp=4, dp=2), threads=3, verify=True,
        watch=lambda what, now, total: written.append(now) if what == "copying" else None,
    )  # fmt: skip
    assert done.resumed_bytes >= 4 * 4096
    assert written[0] > done.resumed_bytes
    assert_holds(folder / "b", wholes)
    assert contents(folder / "a") == before
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


@pytest.mark.long
def test_two_runs_at_a_time_are_refused(folder: Path) -> None:
    stored(folder / "a", job(tp=2))

    def again(what: str, done: int, total: int) -> None:
        with pytest.raises(InputError, match="another run is writing it"):
            reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4))
        seen.append(done)

    seen: list[int] = []
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4), watch=again)
    assert seen


@pytest.mark.long
def test_each_host_writes_its_own_ranks_from_where_the_old_files_are(folder: Path) -> None:
    wholes = stored(folder / "a", job(tp=2, dp=2))
    shutil.copytree(folder / "a", folder / "host1")
    for rank in (2, 3):
        (folder / "a" / f"rank_{rank:05d}.safetensors").unlink()
    for rank in (0, 1):
        (folder / "host1" / f"rank_{rank:05d}.safetensors").unlink()
    to = StoredParallelism(tp=4, dp=2)
    where = {0: str(folder / "a"), 1: str(folder / "host1")}
    for host in range(4):
        reshard(folder / "a", folder / f"b{host}", to=to, host=host, peers=where, gpus_per_host=2)
        assert len(list((folder / f"b{host}").glob("*.safetensors"))) == 2
    with pytest.raises(InputError, match="host 4: has no rank of tp=4,pp=1,dp=2"):
        reshard(folder / "a", folder / "b4", to=to, host=4, peers=where, gpus_per_host=2)
    for host in range(4):
        for file in (folder / f"b{host}").glob("*.safetensors"):
            shutil.move(file, folder / "b0" / file.name) if host else None
    assert_holds(folder / "b0", wholes)


# The bugs that other resharders had, each shown to be one that these checks would catch.


def corrupted(folder: Path, name: str, change: object) -> list[str]:
    """Change a tensor in the files of a checkpoint with hashes; returns what verifying says."""
    collection = Checkpoint.read(folder).collection
    wholes = random_tensors(collection)
    hashes = content_hashes(Reading.at(folder))
    write_checkpoint(folder, Checkpoint(collection=collection, sha256=hashes), wholes)
    refuse_other_content(Reading.at(folder), hashes)
    write_checkpoint(folder, Checkpoint(collection=collection, sha256=hashes), wholes | {name: change(wholes[name])})
    with pytest.raises(FaultyInputError) as raised:
        refuse_other_content(Reading.at(folder), hashes)
    return list(raised.value.faults)


@pytest.mark.long
def test_a_fused_tensor_cut_at_the_wrong_boundary_is_found_by_content(folder: Path) -> None:
    """Gates and ups swapped between ranks: every shape and every sum stays the same."""
    name = "layers.1.mlp.h_to_4h.weight"
    naive = Tensor(name=name, shape=(48, 16), dtype="F32", places=(1,), cuts=(Cut(dim=0),))
    fused = dataclasses.replace(naive, cuts=(Cut(dim=0, parts=(CutPart(24), CutPart(24))),))
    two = [TensorCollection(tensors=(tensor,), parallelism=StoredParallelism(tp=2, pp=2)) for tensor in (naive, fused)]
    assert two[0].arrays[2][name].shape == two[1].arrays[2][name].shape
    assert two[0].arrays[2][name] != two[1].arrays[2][name]
    stored(folder / "a", job(LLAMA, tp=2))
    faults = corrupted(folder / "a", name, lambda whole: whole.reshape(2, 2, 12, 16).swapaxes(0, 1).reshape(48, 16))
    assert len(faults) == 1
    assert name in faults[0]
    assert "rank_00000.safetensors and 1 more" in faults[0]


@pytest.mark.long
def test_a_replica_that_diverged_is_found_before_a_merge(folder: Path) -> None:
    stored(folder / "a", job(tp=2, dp=2))
    path = folder / "a" / "rank_00003.safetensors"
    reading = Reading.at(folder / "a")
    entry = reading.source(3, "optimiser.exp_avg.layers.2.input_norm.weight").entry
    data = bytearray(path.read_bytes())
    data[entry.begin] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        FaultyInputError, match=r"rank_00003.*layers\.2\.input_norm\.weight differs from its replica in rank_00000"
    ):
        refuse_other_content(Reading.at(folder / "a"), {})


@pytest.mark.long
def test_a_tied_embedding_reaches_the_last_stage(folder: Path) -> None:
    wholes = stored(folder / "a", job(tp=2))
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=2, pp=4))
    name = "embedding.word.weight"
    collection = Checkpoint.read(folder / "b").collection
    files = [folder / "b" / f"rank_{rank:05d}.safetensors" for rank in (0, 1, 6, 7)]
    held = [Reading.at(folder / "b").source(rank, name) for rank in (0, 1, 6, 7)]
    assert all(file.is_file() for file in files)
    for rank, source in zip((0, 1, 6, 7), held, strict=True):
        (piece,) = collection.arrays[rank][name].pieces
        expected = view_of(part_of(wholes[name], collection.arrays[rank][name]).reshape(-1), piece)
        np.testing.assert_array_equal(source.view(piece), expected)


@pytest.mark.long
def test_layers_keep_their_number_when_stages_change(folder: Path) -> None:
    collection = job(pp=4)
    wholes = {
        tensor.name: np.full_like(whole, hash_of(tensor))
        for tensor, whole in zip(collection.tensors, random_tensors(collection).values(), strict=True)
    }
    write_checkpoint(folder / "a", Checkpoint(collection=collection), wholes)
    reshard(folder / "a", folder / "b", to=collection.resized(StoredParallelism(pp=2), stages=(1, 0, 1, 0)))
    reading = Reading.at(folder / "b")
    for layer, rank in enumerate((1, 0, 1, 0)):
        name = f"layers.{layer}.attention.qkv.bias"
        (piece,) = reading.checkpoint.collection.arrays[rank][name].pieces
        assert set(reading.source(rank, name).view(piece).tolist()) == {hash_of(collection.by_name[name])}


def hash_of(tensor: Tensor) -> int:
    """Return a number of a tensor's name."""
    return sum(map(ord, tensor.name)) % 251


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["zero1", "fsdp"])
def test_padding_and_groups_of_flat_buffers_change_with_the_ranks(folder: Path, sharding: str) -> None:
    start = dataclasses.replace(job(EXPERTS, sharding, tp=2, dp=4, ep=2), flat_multiple=64)
    wholes = stored(folder / "a", start)
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=1, pp=2, dp=3), verify=True)
    assert_holds(folder / "b", wholes)


@pytest.mark.long
def test_hashes_are_the_same_under_any_parallelism(folder: Path) -> None:
    collection = job(LLAMA, "zero1", tp=2, dp=2)
    wholes = stored(folder / "a", collection)
    stored(folder / "b", collection.resized(StoredParallelism(pp=4, dp=3)))
    assert content_hashes(Reading.at(folder / "a")) == content_hashes(Reading.at(folder / "b"))
    changed = wholes | {"optimiser.step": wholes["optimiser.step"] + 1}
    write_checkpoint(folder / "c", Checkpoint(collection=collection), changed)
    other, known = content_hashes(Reading.at(folder / "c")), content_hashes(Reading.at(folder / "a"))
    assert [name for name in known if known[name] != other[name]] == ["optimiser.step"]


@pytest.mark.long
@pytest.mark.parametrize("digest", DIGESTS)
def test_verified_hashes_are_kept(folder: Path, digest: Digest) -> None:
    stored(folder / "a", job(tp=2))
    reshard(folder / "a", folder / "b", to=StoredParallelism(dp=2), verify=True, digest=digest)
    found = Checkpoint.read(folder / "b")
    assert getattr(found, digest) == content_hashes(Reading.at(folder / "a"), digest)
    assert {name for name in DIGESTS if getattr(found, name)} == {digest}


@pytest.mark.long
def test_memory_is_bounded_by_the_buffer(folder: Path) -> None:
    wide = StoredTransformer(num_layers=2, hidden=256, heads=8, vocabulary=3000, pad_vocabulary=8)
    stored(folder / "a", job(wide, tp=2))
    stored_bytes = sum(file.stat().st_size for file in (folder / "a").iterdir())
    assert stored_bytes > 30_000_000
    reshard(folder / "a", folder / "warm-up", to=StoredParallelism(tp=4, dp=2))  # what is imported and cached once
    tracemalloc.start()
    reshard(folder / "a", folder / "b", to=StoredParallelism(tp=4, dp=2), buffer_bytes=1_000_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000 + 9_000_000  # the plan, the descriptions and the library's own objects
