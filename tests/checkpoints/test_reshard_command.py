"""``ddlsched reshard`` and ``ddlsched checkpoint inspect``, by hand."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import refused, run
from small_jobs import GPT, assert_holds, contents, stored

from ddlsched.checkpoints import locations, resharding
from ddlsched.checkpoints.checkpoint import Checkpoint
from ddlsched.checkpoints.collection import StoredParallelism, TensorCollection
from ddlsched.checkpoints.content import Digest, content_hashes
from ddlsched.checkpoints.distributed_writing import TORCH_FILES
from ddlsched.checkpoints.file_forms import RANK_FILES
from ddlsched.checkpoints.reading import Reading
from ddlsched.checkpoints.reshard_command import plan_numbers, plan_text
from ddlsched.checkpoints.resharding import planned
from ddlsched.checkpoints.tensor_models import Optimiser, job_tensors
from ddlsched.checkpoints.tensors import Cut, Tensor
from ddlsched.errors import InputError

JOB = TensorCollection(tensors=job_tensors(GPT, optimiser=Optimiser()), parallelism=StoredParallelism(tp=2, dp=2))


@pytest.mark.long
def test_reshard_writes_shows_and_verifies(folder: Path) -> None:
    wholes = stored(folder / "a", JOB, iteration=9)
    done = run("reshard", folder / "a", folder / "b", "--to", "tp=4,pp=2", "--gpus-per-host", 2, "--verify")
    assert done.exit_code == 0, done.stderr
    assert "tp=2,pp=1,dp=2 (4 ranks, 2 hosts)  ->  tp=4,pp=2,dp=1 (8 ranks, 4 hosts)" in done.stdout
    for line in ("kept on the device", "fetched from other hosts", "whatever the plan", "from old rank (down)"):
        assert line in done.stdout
    assert f"to {folder / 'b'}: planned in" in done.stderr
    assert "checked in" in done.stderr
    assert_holds(folder / "b", wholes)


@pytest.mark.long
def test_a_dry_run_writes_nothing_and_its_json_is_the_plan(folder: Path) -> None:
    stored(folder / "a", JOB)
    flags = ("reshard", folder / "a", folder / "b", "--to", "tp=1,pp=4", "--gpus-per-host", 2, "--json")
    dry = json.loads(run(*flags, "--dry-run").stdout)
    assert [path.name for path in folder.iterdir()] == ["a"]
    wet = json.loads(run(*flags).stdout)
    assert {name: wet[name] for name in dry} == dry
    assert sum(link["bytes"] for link in dry["hosts"]) == dry["lower_bound_bytes"] == dry["bytes"]["network"]
    assert sum(pair["bytes"] for pair in dry["ranks"]) == sum(dry["bytes"].values())
    assert wet["written_bytes"] == sum(file.stat().st_size for file in (folder / "b").glob("rank_*"))
    assert wet["resumed_bytes"] == 0


SMALL = TensorCollection(
    tensors=(Tensor(name="w", shape=(40, 60), dtype="F32", cuts=(Cut(dim=1),)),), parallelism=StoredParallelism(tp=2)
)
FLAGS: list[tuple[tuple[object, ...], dict[str, object]]] = [
    ((), {}),
    (("--to", "dp=4", "--stages", "0,0, 0,0"), {"to": StoredParallelism(dp=4), "stages": [0, 0, 0, 0]}),
    (("--verify", "--digest", "sha256"), {"verify": True, "digest": "sha256"}),
    (("--host", 0, "--gpus-per-host", 3), {"host": 0, "gpus_per_host": 3}),
    (("--host", 1, "--buffer-mb", 1), {"host": 1, "buffer_bytes": 1_000_000}),
    (("--buffer-mb", 7, "--format", "torch"), {"buffer_bytes": 7_000_000, "form": TORCH_FILES}),
]


@pytest.mark.parametrize(("flags", "told"), FLAGS)
def test_flags_say_what_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[object, ...], told: dict[str, object]
) -> None:
    stored(folder / "a", SMALL)
    begun: list[object] = []
    monkeypatch.setattr(locations, "begin_reading", begun.append)

    def noted(source: Reading, destination: Path, **fields: object) -> None:
        begun.extend([source.only_read, destination, {name: of for name, of in fields.items() if name != "watch"}])
        raise InputError("enough")

    monkeypatch.setattr(resharding, "reshard", noted)
    unknown = f"ddlsched: no sha256 hash of 1 tensors in {folder / 'a'}: damage that they have already is not found\n"
    done = run("reshard", folder / "a", folder / "b", *flags)
    assert done == (2, "", (unknown if "--verify" in flags else "") + "ddlsched: error: enough\n")
    usual = {
        "to": SMALL.parallelism,
        "form": RANK_FILES,
        "host": None,
        "gpus_per_host": 0,
        "stages": [],
        "verify": False,
    }
    expected = usual | {"digest": "xxh3", "buffer_bytes": 64_000_000} | told
    assert begun == [str(folder / "a"), str(folder / "a"), folder / "b", expected]


def test_a_plan_is_printed_for_readers_or_as_json_and_for_other_formats_not_at_all(folder: Path) -> None:
    stored(folder / "a", SMALL)
    kinds = (("--dry-run",), ("--dry-run", "--json"), (), ("--json",), ("--format", "torch"))
    shown = [run("reshard", folder / "a", folder / str(number), *flags) for number, flags in enumerate(kinds)]
    text, numbers, done_text, done_numbers, torch = (done.stdout for done in shown)
    reading = Reading.at(folder / "a")
    made = planned(reading, SMALL.parallelism)
    assert (text, done_text, torch) == (plan_text(made), plan_text(made), "")
    assert numbers == json.dumps(plan_numbers(made), indent=2) + "\n"
    assert done_numbers.startswith(numbers.removesuffix("\n}\n") + ',\n  "written_bytes": ')
    assert done_numbers.endswith("\n}\n")
    assert [done.stderr.count("wrote") for done in shown] == [0, 0, 1, 1, 1]
    files = sorted((folder / "4").glob("*.distcp"))
    size = sum(file.stat().st_size for file in files)
    assert shown[4].stderr.startswith(f"ddlsched: wrote {size / 1e3:,.2f} kB to {folder / '4'}: planned in ")


@pytest.mark.long
def test_many_ranks_are_shown_by_host(folder: Path) -> None:
    stored(folder / "a", JOB)
    text = run("reshard", folder / "a", folder / "b", "--to", "tp=4,dp=10", "--dry-run").stdout
    assert "from old host (down) to new host (across)" in text


@pytest.mark.long
def test_ranks_without_a_row_are_named(folder: Path) -> None:
    stored(folder / "a", JOB)
    text = run("reshard", folder / "a", folder / "b", "--to", "tp=2,dp=1", "--dry-run").stdout
    assert "  2 old ranks are no rows, as they send nothing: others hold the same bytes (2, 3)" in text
    same = run("reshard", folder / "a", folder / "c", "--to", "tp=2,dp=2", "--dry-run").stdout
    assert "no rows" not in same
    assert "no columns" not in same


@pytest.mark.long
def test_lost_ranks(folder: Path) -> None:
    wholes = stored(folder / "a", JOB)
    (folder / "a" / "rank_00003.safetensors").unlink()
    bad = run("reshard", folder / "a", folder / "b", "--to", "tp=2")
    assert bad.exit_code == 2
    assert "rank_00003.safetensors: cannot be read (No such file or directory)" in bad.stderr
    assert run("reshard", folder / "a", folder / "b", "--to", "tp=2", "--lost", "3").exit_code == 0
    assert_holds(folder / "b", wholes)
    none = run("reshard", folder / "a", folder / "c", "--to", "tp=2", "--lost", "1,3")
    assert "with ranks 1, 3 lost, no replica of" in none.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--to", "tp=3"), "do not divide among 3 tensor-parallel ranks"),
        (("--to", "4"), "parallelism 4: '4' is no parameter; expected name=value"),
        (("--to", "tp=2", "--lost", "x"), "--lost x: 'x' is no number"),
        (("--to", "tp=2", "--peer", "host1"), "--peer host1: expected HOST=URL"),
        (("--to", "tp=2", "--buffer-mb", 0), "--buffer-mb 0: expected a whole number from 1"),
        (("--to", "tp=2", "--gpus-per-host", -1), "gpus_per_host is -1"),
        (("--to", "tp=2", "--host", 7), "host 7: has no rank of tp=2,pp=1,dp=1"),
        (("--to", "tp=2", "--host", 0, "--verify"), "writes a part of the ranks, which verify cannot check"),
    ],
)
def test_bad_flags(folder: Path, flags: tuple[object, ...], message: str) -> None:
    stored(folder / "a", JOB)
    done = run("reshard", folder / "a", folder / "b", *flags)
    assert done.exit_code == 2
    assert message in done.stderr
    assert [path.name for path in folder.iterdir()] == ["a"]


@pytest.mark.long
def test_inspect_shows_and_checks(folder: Path) -> None:
    stored(folder / "a", JOB, iteration=9, dataset={"samples": 36})
    Checkpoint(
        collection=JOB, iteration=9, dataset={"samples": 36}, sha256=content_hashes(Reading.at(folder / "a"))
    ).write_description(folder / "a")
    done = run("checkpoint", "inspect", folder / "a", "--verify")
    assert done.exit_code == 0, done.stderr
    for text in ("tp=2,pp=1,dp=2, iteration 9; contents and replicas checked", "stage 0: layers 0-3", '"samples": 36',
                 "layers.*.attention.qkv.weight", "padded to 128 x tp", "rank_00003.safetensors"):  # fmt: skip
        assert text in done.stdout, text
    found = json.loads(run("checkpoint", "inspect", folder / "a", "--json").stdout)
    assert found["whole_bytes"] == sum(tensor.num_bytes for tensor in JOB.tensors)
    assert sum(kind["count"] for kind in found["tensors"]) == len(JOB.tensors)
    files = sorted((folder / "a").glob("rank_*"))
    assert [file["bytes"] for file in found["files"]] == [file.stat().st_size for file in files]


@pytest.mark.long
@pytest.mark.parametrize("form", ["torch", "huggingface", "megatron"])
def test_inspect_reads_every_format_that_reshard_writes(folder: Path, form: str) -> None:
    made = run("checkpoint", "make", folder / "a", "--layers", "1", "--hidden", "32", "--heads", "2", "--seed", "3")
    assert made.exit_code == 0, made.stderr
    run("reshard", folder / "a", folder / "b", "--format", form)
    found = json.loads(run("checkpoint", "inspect", folder / "b", "--json").stdout)
    large = max(found["files"], key=lambda file: file["bytes"])
    assert large == {
        "file": large["file"],
        "arrays": large["arrays"],
        "bytes": (folder / "b" / large["file"]).stat().st_size,
    }
    assert large["file"] in run("checkpoint", "inspect", folder / "b", "--verify").stdout
    with (folder / "b" / large["file"]).open("r+b") as file:
        file.seek(large["bytes"] // 2)
        file.write(bytes(64))
    refused(run("checkpoint", "inspect", folder / "b", "--verify"), "content hash", lines=None)


@pytest.mark.long
def test_inspect_reports_every_tensor_that_is_not_as_saved(folder: Path) -> None:
    stored(folder / "a", JOB)
    hashes = content_hashes(Reading.at(folder / "a")) | {"optimiser.step": "0" * 64, "final_norm.bias": "1" * 64}
    Checkpoint(collection=JOB, sha256=hashes).write_description(folder / "a")
    before = contents(folder / "a")
    assert run("checkpoint", "inspect", folder / "a").exit_code == 0
    done = run("checkpoint", "inspect", folder / "a", "--verify")
    assert done.exit_code == 2
    assert done.stderr.count("has content hash") == 2
    os.truncate(folder / "a" / "rank_00002.safetensors", 1000)
    assert "rank_00002.safetensors: " in run("checkpoint", "inspect", folder / "a").stderr
    assert "checkpoint.json: cannot be read" in run("checkpoint", "inspect", folder / "none").stderr
    assert before["checkpoint.json"] == contents(folder / "a")["checkpoint.json"]


def imported(*args: object) -> set[str]:
    """Return which of some modules a command imports in a process of its own."""
    program = (
        "import sys\nfrom ddlsched.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print([m for m in ('numpy', 'pandas', 'rich', 'typer', 'xxhash', 'torch', 'numba', "
        "'ddlsched.cli.simulate_command', 'ddlsched.checkpoints.distributed_reading') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program, *map(str, args)], capture_output=True, text=True, check=True)
    found: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return set(found)


@pytest.mark.long
def test_a_copy_imports_only_what_it_needs(folder: Path) -> None:
    stored(folder / "a", JOB)
    assert imported("reshard", folder / "a", folder / "b", "--to", "tp=2,pp=4") == {"typer"}
    parts = imported("reshard", folder / "a", folder / "c", "--to", "tp=2,pp=2", "--verify")
    assert parts <= {"typer", "xxhash", "numpy"}
    assert "numpy" in imported("reshard", folder / "a", folder / "d", "--to", "tp=4")  # for rows that lie apart


@pytest.mark.long
@pytest.mark.parametrize(("flags", "recorded"), [((), "xxh3"), (("--digest", "sha256"), "sha256")])
def test_the_digest_of_verify_is_recorded(folder: Path, flags: tuple[str, ...], recorded: Digest) -> None:
    stored(folder / "a", JOB)
    assert run("reshard", folder / "a", folder / "b", "--to", "tp=4", "--verify", *flags).exit_code == 0
    assert getattr(Checkpoint.read(folder / "b"), recorded) == content_hashes(Reading.at(folder / "b"), recorded)
    done = run("checkpoint", "inspect", folder / "b", "--verify")
    assert f"({len(JOB.tensors)} with a content hash)" in done.stdout
    path = folder / "b" / "rank_00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(run("checkpoint", "inspect", folder / "b", "--verify"), "tensor", lines=None)


def test_a_pipe_as_a_rank_file_and_far_too_many_ranks_are_one_line_at_once(folder: Path) -> None:
    stored(folder / "a", JOB)
    refused(run("reshard", folder / "a", folder / "b", "--to", "dp=1000000"), "expected a whole number from 1 to")
    (folder / "a" / "rank_00001.safetensors").unlink()
    os.mkfifo(folder / "a" / "rank_00001.safetensors")
    refused(run("reshard", folder / "a", folder / "b", "--to", "tp=4"), "is no regular file")
