"""Damaged checkpoints of other programs: refused with a message, or read as they are; never a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from ddlsched.checkpoints.formats import Format, foreign_reading, form_of, reading_for
from ddlsched.checkpoints.plain_pickles import unpickled
from ddlsched.checkpoints.resharding import reshard
from ddlsched.errors import InputError

HERE = Path(__file__).parent


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return a file with a byte changed, some taken out or some put in."""
    data, at = bytearray(content), rng.randrange(len(content))
    match rng.randrange(3):
        case 0:
            data[at] = rng.randrange(256)
        case 1:
            del data[at : at + rng.choice([1, 8, 100])]
        case _:
            data[at:at] = rng.randbytes(4)
    return bytes(data)


def refusal(folder: Path, destination: Path, form: Format) -> str:
    """Return why a folder cannot be taken to a format; nothing if it can."""
    try:
        reading = foreign_reading(folder)
        assert reading is not None
        found = reading_for(form, reading)
        reshard(found, destination, to=found.job.parallelism, form=form_of(form), verify=True)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.long
@pytest.mark.parametrize("source", ["fsdp2", "megatron", "distributed"])
def test_damage_is_refused_or_harmless(source: str, tmp_path: Path) -> None:
    rng = random.Random(source)
    refusals = []
    for number in range(20):
        folder = tmp_path / str(number)
        shutil.copytree(HERE / source, folder)
        file = rng.choice([folder / ".metadata", *sorted(folder.glob("*.distcp"))])
        file.write_bytes(damaged(file.read_bytes(), rng))
        refusals.append(refusal(folder, tmp_path / f"new {number}", rng.choice(list(Format))))
    said = [text for text in refusals if text]
    assert len(said) > 5
    assert all(str(tmp_path) in text or "tensor" in text for text in said)


def test_a_damaged_number_takes_no_memory() -> None:
    """The unpickler in C reserves 16 GB for this."""
    assert unpickled(b"\x80\x02]r\xff\xff\xff\x7f.", {}, "x") == []


def test_an_archive_cut_short_is_named(tmp_path: Path) -> None:
    shutil.copytree(HERE / "distributed", tmp_path / "a")
    file = tmp_path / "a" / "__0_0.distcp"
    content = file.read_bytes()
    at = content.index(b"PK\x01\x02") + 20
    longer = (int.from_bytes(content[at : at + 4], "little") + 10**6).to_bytes(4, "little")
    file.write_bytes(content[:at] + longer * 2 + content[at + 8 :])
    with pytest.raises(InputError, match=r"__0_0\.distcp: tensor \S+ at \[[\d, ]*\]: is no archive of a tensor"):
        foreign_reading(tmp_path / "a")
