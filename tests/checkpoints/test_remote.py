"""Old files on another host, behind an HTTP server that answers ranges."""

from __future__ import annotations

import re
import time
from pathlib import Path

import fsspec
import pytest
from range_server import serving
from small_jobs import LLAMA, assert_holds, stored

from ddlsched.checkpoints import locations
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer, job_tensors
from ddlsched.errors import InputError
from ddlsched.io import files

WIDE = StoredTransformer(num_layers=2, hidden=64, heads=8, vocabulary=1000)


def job(model: StoredTransformer = WIDE, **degrees: int) -> TensorCollection:
    return TensorCollection(tensors=job_tensors(model, optimiser=Optimiser()), parallelism=StoredParallelism(**degrees))


@pytest.mark.long
def test_a_checkpoint_is_read_from_a_url(folder: Path) -> None:
    wholes = stored(folder / "a", job(LLAMA, tp=2, pp=2), iteration=5)
    with serving(folder / "a") as (url, _):
        assert Checkpoint.read(url).iteration == 5
        reshard(url, folder / "b", to=StoredParallelism(tp=4, dp=2), verify=True)
    assert_holds(folder / "b", wholes)


@pytest.mark.long
@pytest.mark.parametrize("after", [{"tp": 8}, {"tp": 2, "pp": 2}])
def test_a_host_fetches_nothing_twice(folder: Path, monkeypatch: pytest.MonkeyPatch, after: dict[str, int]) -> None:
    monkeypatch.setattr(locations, "_BLOCK_BYTES", 16384)
    wholes = stored(folder / "a", job(tp=4))
    with serving(folder / "a") as (url, served):
        found = reshard(url, folder / "b", to=StoredParallelism(**after), buffer_bytes=1 << 17, threads=4).plan
    assert_holds(folder / "b", wholes)
    whole_bytes = sum(whole.nbytes for whole in wholes.values())
    sent = sum(size for file, size in served.items() if file.startswith("rank_"))
    files_bytes = sum(file.stat().st_size for file in (folder / "a").glob("rank_*"))
    assert whole_bytes <= sent <= files_bytes  # no byte of any file twice
    assert sum(found.bytes_by_way.values()) >= whole_bytes


@pytest.mark.long
def test_only_the_files_of_other_hosts_are_fetched(folder: Path) -> None:
    stored(folder / "a", job(tp=2, dp=2))
    with serving(folder / "a") as (url, served):
        found = reshard(
            folder / "a", folder / "b", to=StoredParallelism(tp=2, dp=2, pp=2), host=1, gpus_per_host=2,
            peers={0: url},
        ).plan  # fmt: skip
    fetched = found.bytes_between_hosts.get((0, 1), 0)
    headers = 2 * locations._BLOCK_BYTES
    assert fetched <= sum(served.values()) <= fetched + headers + 200_000


@pytest.mark.long
def test_any_file_system_of_fsspec_serves(folder: Path) -> None:
    wholes = stored(folder / "a", job(LLAMA, tp=2))
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "a"), "/checkpoints/a", recursive=True)
    reshard("memory://checkpoints/a", folder / "b", to=StoredParallelism(pp=2))
    assert_holds(folder / "b", wholes)


@pytest.mark.long
def test_servers_that_fail_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(folder / "a", job(LLAMA, tp=2))
    with monkeypatch.context() as patched, serving(folder / "a", ranges=False) as (url, _):
        patched.setattr(locations, "_BLOCK_BYTES", 512)
        with pytest.raises(InputError, match=r"rank_00000\.safetensors: gave .* bytes of 512; expected a whole file"):
            reshard(url, folder / "b", to=StoredParallelism(pp=2))
    with serving(folder / "a") as (url, _):
        (folder / "a" / "rank_00001.safetensors").unlink()
        with pytest.raises(InputError, match=r"http://.*/rank_00001\.safetensors: cannot be read \(FileNotFoundError"):
            reshard(url, folder / "b", to=StoredParallelism(pp=2))
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9/checkpoint\.json: cannot be read"):
        reshard("http://127.0.0.1:9", folder / "b", to=StoredParallelism(pp=2))
    with pytest.raises(InputError, match=r"odd://x: cannot be opened .*expected a URL that fsspec knows"):
        reshard("odd://x", folder / "b", to=StoredParallelism(pp=2))
    assert not (folder / "b").exists()


@pytest.mark.long
def test_item_13_a_server_that_stalls_within_a_range_is_given_up_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder / "a", job(LLAMA, tp=2))
    monkeypatch.setattr(files, "_SERVER_SILENCE_S", 0.3)
    begin_s = time.monotonic()
    with serving(folder / "a", stalls=True) as (url, _), pytest.raises(InputError) as raised:
        reshard(url, folder / "b", to=StoredParallelism(pp=2))
    text = str(raised.value)
    assert re.fullmatch(r"http://.*rank_0000\d\.safetensors: cannot be read \(.*imeout.*\); expected .*", text), text
    assert time.monotonic() - begin_s < 10
    assert not (folder / "b").exists()
