"""``ddlsched checkpoint``: what is in a checkpoint, and whether it is whole."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddlsched.cli.dataclass_options import Given, Panel, option
from ddlsched.cli.reporting import emit
from ddlsched.options import Option

if TYPE_CHECKING:
    from ddlsched.checkpoints.collection import TensorCollection
    from ddlsched.checkpoints.content import Digest
    from ddlsched.checkpoints.reading import Reading
    from ddlsched.checkpoints.tensors import Cut, Tensor


Dtype = StrEnum("Dtype", ("bf16", "f16", "f32"))
"""Of the weights."""


class Sharding(StrEnum):
    """Of the optimiser."""

    none = "none"
    zero1 = "zero1"
    fsdp = "fsdp"


@dataclass(frozen=True, kw_only=True)
class MakeOptions:
    """What a checkpoint to try things on is like.

    Parameters
    ----------
    parallelism
        Degrees; what is left out is 1.
    layers
        Transformer layers.
    hidden
        Hidden size.
    heads
        Attention heads.
    vocabulary
        Words, before padding to a multiple of 128 x tp.
    positions
        Learned positions; 0: none.
    key_value_heads
        Fewer than heads for grouped queries; 0: as many.
    experts
        Feed-forward networks of a layer; 0: one without a router.
    gated
        Gate and up projection are one fused matrix.
    untied
        The output layer is not the word embedding.
    dtype
        Of the weights; bf16 and f16 have fp32 master weights.
    sharding
        Who holds Adam's state: every replica, or replicas share it.
    iteration
        Steps that it says were trained.
    seed
        The same seed gives the same contents under every parallelism.
    as_json
        Print what was written as one JSON object.
    """

    parallelism: str = option("tp=2,pp=1,dp=2", metavar="tp=N,pp=N,dp=N,ep=N")
    layers: int = 4
    hidden: int = 256
    heads: int = 8
    vocabulary: int = 50257
    positions: int = 1024
    key_value_heads: int = 0
    experts: int = 0
    gated: bool = False
    untied: bool = False
    dtype: Dtype = Dtype.bf16
    sharding: Sharding = Sharding.none
    iteration: int = 100
    seed: int = 0
    as_json: bool = False


def make(directory: Annotated[Path, Option(metavar="DIR")], options: Annotated[Given[MakeOptions], Panel()]) -> None:
    """Write the checkpoint of a GPT in the middle of its training with Adam: random, seeded weights and moments.

    Parameters
    ----------
    directory
        A new folder.
    """
    from ddlsched.checkpoints.collection import parse_parallelism
    from ddlsched.checkpoints.making import make_checkpoint
    from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer
    from ddlsched.io.progress import bytes_bar

    asked = options.made()
    same = ("hidden", "heads", "vocabulary", "positions", "key_value_heads", "experts", "gated")
    sizes = {name: getattr(asked, name) for name in same}
    model = StoredTransformer(num_layers=asked.layers, tied=not asked.untied, **sizes)
    with bytes_bar() as watch:
        made = make_checkpoint(
            directory,
            model,
            parse_parallelism(asked.parallelism),
            dtype=asked.dtype.value.upper(),
            optimiser=Optimiser(sharding=asked.sharding.value),
            iteration=asked.iteration,
            seed=asked.seed,
            watch=lambda done, total: watch("making", done, total),
        )
    files = [(directory / file).stat().st_size for file in made.files]
    found = {
        "directory": str(directory),
        "parameters": sum(prod(tensor.shape) for tensor in model.parameters("F32")),
        "tensors": len(made.collection.tensors),
        "files": len(files),
        "bytes": sum(files),
    }
    if asked.as_json:
        emit(json.dumps(found, indent=2) + "\n")
    else:
        emit(
            f"{directory}: {found['parameters']:,} parameters, {found['tensors']} tensors, "
            f"{len(files)} files of {sum(files):,} bytes together ({made.collection.parallelism})\n"
        )


app = typer.Typer(help="Look into partitioned checkpoints, or make one to try things on.", no_args_is_help=True)

app.command("make")(make)


@app.command("inspect")
def inspect(directory: Annotated[str, Option(metavar="DIR")], *, verify: bool = False, as_json: bool = False) -> None:
    """Show a checkpoint's parallelism, tensors and files, and check that each file is what it should be.

    Parameters
    ----------
    directory
        Folder or URL of a checkpoint, or a file, of any format that reshard reads.
    verify
        Read all: contents as saved, replicas equal; takes longer.
    as_json
        Print it as one JSON object.
    """
    from ddlsched.checkpoints.content import refuse_other_content
    from ddlsched.checkpoints.formats import foreign_reading
    from ddlsched.checkpoints.reading import Reading
    from ddlsched.io.progress import bytes_bar

    reading = foreign_reading(directory) or Reading.at(directory)
    reading.refuse_faulty_files()
    if verify:
        with bytes_bar() as watch:
            for digest in _recorded(reading):
                refuse_other_content(reading, getattr(reading.checkpoint, digest), digest, watch=watch)
    found = _numbers(reading)
    emit(json.dumps(found, indent=2) + "\n" if as_json else _text(directory, found, verify))


def _recorded(reading: Reading) -> list[Digest]:
    """Return the digests that a checkpoint records; at least one, so that all is read."""
    from ddlsched.checkpoints.content import DIGESTS

    return [digest for digest in DIGESTS if getattr(reading.checkpoint, digest)] or ["xxh3"]


def _numbers(reading: Reading) -> dict[str, Any]:
    from ddlsched.checkpoints.tensors import total_bytes

    checkpoint, collection, files = reading.checkpoint, reading.checkpoint.collection, _files(reading)
    return {
        "parallelism": str(reading.job.parallelism),
        "stages": list(reading.job.stages),
        "iteration": checkpoint.iteration,
        "whole_tensors": len(collection.tensors),
        "whole_bytes": total_bytes(collection.tensors),
        "stored_bytes": sum(file["bytes"] for file in files),
        "hashed_tensors": len(set(checkpoint.sha256) | set(checkpoint.xxh3)),
        "model": dict(checkpoint.model),
        "dataset": dict(checkpoint.dataset),
        "random": dict(checkpoint.random),
        "tensors": _kinds(collection),
        "files": files,
    }


def _files(reading: Reading) -> list[dict[str, Any]]:
    """Return the files: of this program's checkpoint each is a rank's, with where that is."""
    from ddlsched.checkpoints.reading import PartsReading

    collection = reading.checkpoint.collection
    files: dict[str, dict[str, Any]] = {}
    for rank in reading.survivors:
        name = reading.checkpoint.files[rank]
        row = files.setdefault(name, {"file": name, "arrays": 0, "bytes": reading.place_of(rank).num_bytes(name)})
        row["arrays"] += len(collection.arrays[rank])
        if not isinstance(reading, PartsReading):
            row |= {"rank": rank, **collection.parallelism.coordinates(rank)._asdict()}
            row |= {"device": collection.allocation.devices[rank], "host": collection.allocation.hosts[rank]}
    return list(files.values())


def _kinds(collection: TensorCollection) -> list[dict[str, Any]]:
    """Return the tensors, those that differ only in their layer or kind of optimiser state as one."""
    groups: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
    for tensor in collection.tensors:
        name = re.sub(r"^optimiser\.[^.]+\.(?=.)|\.\d+(?=\.|$)", _starred, tensor.name)
        groups[name, tensor.shape, tensor.dtype, tensor.cuts, bool(tensor.flat)].append(tensor)
    return [
        {
            "name": tensors[0].name if len(tensors) == 1 else name,
            "count": len(tensors),
            "dtype": dtype,
            "shape": list(shape),
            "replicas": max((len(shard.ranks) for shard in collection.shards(tensors[0])), default=0),
            "divided": _division(cuts, flat),
        }
        for (name, shape, dtype, cuts, flat), tensors in groups.items()
    ]


def _starred(found: re.Match[str]) -> str:
    """Return what stands for the number of a layer, or for the kind of an optimiser's state."""
    return ".*" if found[0].startswith(".") else "optimiser.*."


def _division(cuts: tuple[Cut, ...], flat: bool) -> str:
    parts = [*map(_cut, cuts), *(["flat over data"] if flat else [])]
    return "; ".join(parts) or "whole"


def _cut(cut: Cut) -> str:
    text = f"dimension {cut.dim} over {cut.axis}"
    if len(cut.parts) > 1:
        text += f" in {len(cut.parts)} parts"
    units = [part.units for part in cut.parts if part.units]
    if units:
        text += f", {math.gcd(*units)} or more blocks" if len(set(units)) > 1 else f", {units[0]} blocks"
    return text + (f", padded to {cut.pad_multiple} x tp" if cut.pad_multiple else "")


_COLUMNS = ("file", "tensor", "data", "stage", "device", "host", "arrays", "MB")


def _text(directory: str, found: dict[str, Any], verified: bool) -> str:
    checked = "contents and replicas checked" if verified else "headers checked, contents not (--verify)"
    tensors = [row | {"shape": " x ".join(map(str, row["shape"]))} for row in found["tensors"]]
    files = [row | {"MB": f"{row['bytes'] / 1e6:,.3f}"} for row in found["files"]]
    lines = [
        f"{directory}: {found['parallelism']}, iteration {found['iteration']}; {checked}",
        f"  {found['whole_tensors']:,} tensors ({found['hashed_tensors']:,} with a content hash) of "
        f"{found['whole_bytes'] / 1e6:,.3f} MB; {found['stored_bytes'] / 1e6:,.3f} MB in {len(found['files'])} files",
        "  " + (_stages(found["stages"]) or "no layers"),
        *(f"  {name}: {json.dumps(found[name])}" for name in ("model", "dataset", "random") if found[name]),
        "",
        *_table(tensors, "name", "count", "dtype", "shape", "replicas", "divided"),
        "",
        *_table(files, *(name for name in _COLUMNS if any(name in file for file in files))),
    ]
    return "\n".join(lines) + "\n"


def _stages(stages: list[int]) -> str:
    layers: dict[int, list[int]] = defaultdict(list)
    for layer, stage in enumerate(stages):
        layers[stage].append(layer)
    return "; ".join(f"stage {stage}: layers {_ranges(of)}" for stage, of in sorted(layers.items()))


def _ranges(numbers: list[int]) -> str:
    """Return ascending numbers as a text such as 0-3, 8-11."""
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number for number in numbers if number + 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _table(rows: list[dict[str, Any]], *columns: str) -> list[str]:
    """Return some columns of a table; texts are aligned to the left."""
    heads = [_HEADS.get(name, name) for name in columns]
    cells = [heads, *([str(row[name]) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    forms = [f"{'<' if name in _TEXTS else '>'}{width}" for name, width in zip(columns, widths, strict=True)]
    return ["  " + "  ".join(map(format, row, forms)).rstrip() for row in cells]


_HEADS = {"name": "tensor", "count": "number"}
_TEXTS = ("name", "file", "dtype", "shape", "divided")
