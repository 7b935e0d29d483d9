"""``reshard --format torch`` beside what another run left, stopped itself, and with a source that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_jobs import GPT, contents, stored
from tiers import tried

from ddlsched.checkpoints import execution, partial_folder
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import content_hashes
from ddlsched.checkpoints.distributed_reading import read_distributed
from ddlsched.checkpoints.distributed_writing import TORCH_FILES
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.resharding import reshard
from ddlsched.checkpoints.tensor_models import Optimiser, job_tensors
from ddlsched.errors import InputError

JOB = TensorCollection(tensors=job_tensors(GPT, optimiser=Optimiser()), parallelism=StoredParallelism(tp=2))
TO = StoredParallelism(tp=4)


class StoppedError(Exception):
    """Stands for a kill."""


def stop(*_: object) -> None:
    raise StoppedError


@pytest.mark.long
def test_what_another_run_can_go_on_with_stays(folder: Path) -> None:
    stored(folder / "a", JOB)
    with pytest.raises(StoppedError):
        reshard(folder / "a", folder / "b", to=TO, watch=stop)
    left = contents(folder / ".b.partial")
    with pytest.raises(InputError, match="holds part of another change of parallelism"):
        reshard(folder / "a", folder / "b", to=TO, form=TORCH_FILES)
    assert contents(folder / ".b.partial") == left


@pytest.mark.long
@pytest.mark.parametrize("verify", tried([True, False], lambda place: place == 0))
def test_a_run_that_was_stopped_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch, verify: bool) -> None:
    monkeypatch.setattr(execution, "_BATCH_BYTES", 4096)
    stored(folder / "a", JOB)
    with pytest.raises(StoppedError):
        reshard(folder / "a", folder / "b", to=TO, form=TORCH_FILES, verify=verify, watch=stop)
    with monkeypatch.context() as patched:
        patched.setattr(partial_folder.PartialFolder, "finish", stop)
        with pytest.raises(StoppedError):
            reshard(folder / "a", folder / "b", to=TO, form=TORCH_FILES, verify=verify)
    assert reshard(folder / "a", folder / "b", to=TO, form=TORCH_FILES, verify=verify).resumed_bytes > 0
    assert content_hashes(read_distributed(folder / "b")) == content_hashes(Reading.at(folder / "a"))
    assert not (folder / "b" / "journal").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


@pytest.mark.long
def test_a_source_that_changes_is_refused(folder: Path) -> None:
    stored(folder / "a", JOB)
    file = folder / "a" / "rank_00001.safetensors"
    with pytest.raises(InputError, match="has changed while it was read"):
        reshard(folder / "a", folder / "b", to=TO, form=TORCH_FILES, watch=lambda *_: file.touch())
    assert sorted(path.name for path in folder.iterdir()) == ["a"]
