"""``reshard --format torch`` beside what another run left, and with a source that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_jobs import GPT, contents, stored

from ddlsched.errors import InputError
from ddlsched.reconfiguration.collection import TensorCollection
from ddlsched.reconfiguration.distributed_writing import write_distributed
from ddlsched.reconfiguration.parallelism import Parallelism
from ddlsched.reconfiguration.resharding import reshard
from ddlsched.reconfiguration.tensor_models import Optimiser, job_tensors

pytestmark = pytest.mark.torch
JOB = TensorCollection(tensors=job_tensors(GPT, optimiser=Optimiser()), parallelism=Parallelism(tp=2))


class StoppedError(Exception):
    """Stands for a kill."""


def stop(*_: object) -> None:
    raise StoppedError


def test_what_another_run_can_go_on_with_stays(folder: Path) -> None:
    stored(folder / "a", JOB)
    with pytest.raises(StoppedError):
        reshard(folder / "a", folder / "b", to=Parallelism(tp=4), watch=stop)
    left = contents(folder / ".b.partial")
    with pytest.raises(StoppedError):
        write_distributed(folder / "a", folder / "b", watch=stop)
    assert contents(folder / ".b.partial") == left
    assert sorted(path.name for path in folder.iterdir()) == [".b.partial", "a"]
    write_distributed(folder / "a", folder / "b", verify=True)
    assert contents(folder / ".b.partial") == left


def test_a_source_that_changes_is_refused(folder: Path) -> None:
    stored(folder / "a", JOB)
    file = folder / "a" / "rank_00001.safetensors"
    with pytest.raises(InputError, match="has changed while it was read"):
        write_distributed(folder / "a", folder / "b", watch=lambda *_: file.touch())
    assert sorted(path.name for path in folder.iterdir()) == ["a"]
