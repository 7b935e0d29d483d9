"""``ddlsched checkpoint make``: a checkpoint to try ``reshard`` on."""

from __future__ import annotations

import json
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from ddlsched.cli.numbers import whole
from ddlsched.cli.output import emit

__all__ = ["make"]


class Dtype(StrEnum):
    """Of the weights."""

    bf16 = "bf16"
    f16 = "f16"
    f32 = "f32"


class Sharding(StrEnum):
    """Of the optimiser."""

    none = "none"
    zero1 = "zero1"
    fsdp = "fsdp"


def _size(help_text: str) -> typer.models.OptionInfo:
    return typer.Option(help=help_text, metavar="N", parser=whole)  # type: ignore[no-any-return]


def make(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    parallelism: Annotated[
        str, typer.Option(help="Degrees; what is left out is 1.", metavar="tp=N,pp=N,dp=N,ep=N")
    ] = "tp=2,pp=1,dp=2",
    layers: Annotated[int, _size("Transformer layers.")] = 4,
    hidden: Annotated[int, _size("Hidden size.")] = 256,
    heads: Annotated[int, _size("Attention heads.")] = 8,
    vocabulary: Annotated[int, _size("Words, before padding to a multiple of 128 x tp.")] = 50257,
    positions: Annotated[int, _size("Learned positions; 0: none.")] = 1024,
    key_value_heads: Annotated[int, _size("Fewer than heads for grouped queries; 0: as many.")] = 0,
    experts: Annotated[int, _size("Feed-forward networks of a layer; 0: one without a router.")] = 0,
    gated: Annotated[bool, typer.Option("--gated", help="Gate and up projection are one fused matrix.")] = False,
    untied: Annotated[bool, typer.Option("--untied", help="The output layer is not the word embedding.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Of the weights; bf16 and f16 have fp32 master weights.")] = Dtype.bf16,
    sharding: Annotated[
        Sharding, typer.Option(help="Who holds Adam's state: every replica, or replicas share it.")
    ] = Sharding.none,
    iteration: Annotated[int, _size("Steps that it says were trained.")] = 100,
    seed: Annotated[int, _size("The same seed gives the same contents under every parallelism.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write the checkpoint of a GPT in the middle of its training with Adam: random, seeded weights and moments."""
    from ddlsched.checkpoints.making import make_checkpoint
    from ddlsched.checkpoints.parallelism import parse_parallelism
    from ddlsched.checkpoints.tensor_models import Optimiser, StoredTransformer
    from ddlsched.io.progress import bytes_bar

    model = StoredTransformer(
        num_layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        positions=positions,
        key_value_heads=key_value_heads,
        experts=experts,
        gated=gated,
        tied=not untied,
    )
    with bytes_bar() as watch:
        made = make_checkpoint(
            directory,
            model,
            parse_parallelism(parallelism),
            dtype=dtype.value.upper(),
            optimiser=Optimiser(sharding=sharding.value),
            iteration=iteration,
            seed=seed,
            watch=lambda done, total: watch("making", done, total),
        )
    sizes = [(directory / file).stat().st_size for file in made.files]
    found = {
        "directory": str(directory),
        "parameters": sum(prod(tensor.shape) for tensor in model.parameters("F32")),
        "tensors": len(made.collection.tensors),
        "files": len(sizes),
        "bytes": sum(sizes),
    }
    if as_json:
        emit(json.dumps(found, indent=2) + "\n")
    else:
        emit(
            f"{directory}: {found['parameters']:,} parameters, {found['tensors']} tensors, "
            f"{len(sizes)} files of {sum(sizes):,} bytes together ({made.collection.parallelism})\n"
        )
