"""Every file and every line that the commands write of some checkpoints, as they were, to the byte."""

from __future__ import annotations

import math
import re
import zipfile
from pathlib import Path

import pytest
from command_line import run
from kept_numbers import assert_kept, digest

from ddlsched.checkpoints.tensors import DTYPE_BYTES
from ddlsched.checkpoints.torch_archives import archive_of

SMALL = ("--layers", "2", "--hidden", "16", "--heads", "4", "--vocabulary", "40", "--positions", "6")
MADE = (
    ("--parallelism", "tp=2,pp=2,dp=2", "--sharding", "zero1", "--key-value-heads", "2", "--seed", "3"),
    ("--parallelism", "dp=3", "--sharding", "fsdp", "--dtype", "f16", "--gated", "--untied", "--iteration", "7"),
    ("--parallelism", "dp=2,ep=2", "--experts", "4", "--dtype", "f32", "--untied", "--positions", "0"),
)
WRITTEN = (
    ("safetensors", "tp=1,pp=2,dp=2", "--gpus-per-host", "2", "--verify"),
    ("torch", "tp=2,dp=2", "--stages", "0,0", "--verify", "--digest", "sha256"),
    ("megatron", "tp=2,pp=2"),
    ("huggingface", ""),
)
TIMES = re.compile(r"(planned|copied|checked) in \S+ s|\(\S+ GB/s\)")


def told(*arguments: object, folder: Path) -> str:
    """Return what a command says, without times and places."""
    done = run(*arguments)
    said = "\n".join((str(done.exit_code), done.stdout, done.stderr)).replace(str(folder), "FOLDER")
    return TIMES.sub("", said)


def files(folder: Path, inside: Path) -> str:
    """Return how many files there are, how long they are together, and a digest of names and bytes."""
    there = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = [path.read_bytes().replace(str(inside).encode(), b"FOLDER") for path in there]
    parts = [part for path, content in zip(there, contents, strict=True) for part in (path.name, content)]
    return f"{len(there)} {sum(map(len, contents))} {digest(parts)}"


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(MADE)))
def test_what_commands_write_of_checkpoints_is_what_it_was(number: int, tmp_path: Path) -> None:
    found: dict[str, str] = {}
    made = tmp_path / "made"
    found["made"] = digest([told("checkpoint", "make", made, *SMALL, *MADE[number], folder=tmp_path)])
    found["files"] = files(made, tmp_path)
    found["inspected"] = digest([told("checkpoint", "inspect", made, "--verify", folder=tmp_path)])
    for form, to, *more in WRITTEN:
        to_flags = ("--to", to) if to else ()
        new, back, flags_of_plan = tmp_path / form, tmp_path / f"{form}-back", ("--dry-run", "--json")
        plan = told("reshard", made, new, "--format", form, *to_flags, *flags_of_plan, folder=tmp_path)
        said = told("reshard", made, new, "--format", form, *to_flags, *more, folder=tmp_path)
        shown = [told("checkpoint", "inspect", new, *flag, folder=tmp_path) for flag in ((), ("--json", "--verify"))]
        found[form] = f"{files(new, tmp_path)} {digest([plan])} {digest([said])} {digest(shown)}"
        said = told("reshard", new, back, "--to", "tp=2", folder=tmp_path)
        found[f"{form} back"] = f"{files(back, tmp_path)} {digest([said])}"
    assert_kept(f"checkpoint-files-{number}", found)


def test_archives_of_any_size_are_those_that_programs_for_zip_files_read(tmp_path: Path) -> None:
    """Of the larger ones the elements are a hole in the file."""
    found: dict[str, str] = {}
    for dtype, shape in (("F32", (3, 5)), ("BF16", ()), ("I64", (2**29,)), ("F32", (2**30 - 1,)), ("F64", (7, 2**28))):
        archive, path = archive_of(dtype, shape), tmp_path / "archive"
        num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
        with path.open("wb") as file:
            file.write(archive.before)
            file.seek(num_bytes, 1)
            file.write(archive.behind)
        with zipfile.ZipFile(path) as opened:
            members = {member.filename: member for member in opened.infolist()}
            data = members["archive/data/0"]
            assert (data.file_size, data.compress_size) == (num_bytes, num_bytes)
            assert len(opened.read("archive/data.pkl")) == members["archive/data.pkl"].file_size
            opened.open(data).close()  # what is before the elements says the same
        found[f"{dtype} {shape}"] = digest([archive.before, archive.behind])
        path.unlink()
    assert_kept("archives", found)
