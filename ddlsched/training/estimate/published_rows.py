"""Published step times as they are: rows of llm-foundry's, Megatron-Bridge's and torchtitan's tables, by their headers.

A row becomes a model, a parallelism, a GPU and the efficiency of the program that ran it. One that cannot be said keeps
the reason.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlsched.errors import InputError
from ddlsched.io.tables import read_text
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.hardware import Machine, Precision
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import Parallelism, Widths
from ddlsched.training.estimate.presets import MODELS
from ddlsched.training.estimate.step_estimate import Estimate, estimate

__all__ = ["PublishedRun", "is_published", "read_published"]

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A row that can be estimated.

    Attributes
    ----------
    row
        As it stands in the file.
    model, plan
        What was trained, and how it was spread.
    gpu, nic_gbps
        Name of the GPU, and Gbit/s of a server's cards (0: its usual ones).
    program
        Name of the efficiency: which program ran it, and in which version.
    precision
        Of matrix products.
    measured_step_s
        Seconds; NaN where the row has none.
    reason
        Why it cannot be said, or nothing.
    """

    row: Row
    model: Transformer | None = None
    plan: Parallelism = dataclasses.field(default_factory=Parallelism)
    gpu: str = ""
    nic_gbps: float = 0.0
    program: str = ""
    precision: Precision = "half"
    measured_step_s: float = math.nan
    reason: str = ""

    @property
    def machine(self) -> Machine:
        """The cluster that it ran on."""
        card = f":nic_gbps={self.nic_gbps}" if self.nic_gbps else ""
        return parse_cluster(self.gpu + card, efficiency=self.program).machine(int(self.plan.num_gpus))

    def estimated(self, machine: Machine | None = None) -> Estimate:
        """Return the estimate, on another machine if one is given."""
        assert self.model is not None, self.reason
        return estimate(self.model, self.plan, machine or self.machine, precision=self.precision)


def is_published(header: list[str]) -> bool:
    """Return whether a table's header is that of one of the published tables."""
    return _reader(header) is not None


def read_published(path: Path) -> list[PublishedRun]:
    """Return the rows of a table, in order.

    Raises
    ------
    InputError
        The file cannot be read, or its header is none of the three.
    """
    rows = list(csv.DictReader(io.StringIO(read_text(path)), skipinitialspace=True))
    read = _reader(list(rows[0])) if rows else None
    if read is None:
        raise InputError(f"{path}: is no table of published step times; expected the columns of one that is known")
    return [_kept(read, row) for row in rows]


def _reader(header: list[str]) -> Callable[[Row], PublishedRun] | None:
    own = {name.strip() for name in header}
    known = {"accumulation": _foundry, "release": _bridge, "local_batch": _titan}
    return next((read for name, read in known.items() if name in own), None)


def _kept(read: Callable[[Row], PublishedRun], row: Row) -> PublishedRun:
    try:
        return read(row)
    except KeyError as error:
        return PublishedRun(row=row, reason=f"{error} is none that is known")
    except (InputError, ValueError) as error:
        return PublishedRun(row=row, reason=str(error))


def _whole(row: Row, name: str, default: int = 1) -> int:
    text = (row.get(name) or "").strip()
    return int(float(text)) if text else default


def _foundry(row: Row) -> PublishedRun:
    """Return a row of MosaicML's llm-foundry: MPT models under FSDP, with ALiBi in place of positions."""
    gpus, sequence, batch = (_whole(row, name) for name in ("gpus", "sequence", "global_batch"))
    model = Transformer(
        num_layers=_whole(row, "layers"),
        hidden=_whole(row, "hidden"),
        heads=_whole(row, "heads"),
        sequence=sequence,
        vocabulary=_whole(row, "vocabulary"),
        biases=False,
        learned_positions=False,
        dropout=False,
        fused_attention=True,
    )
    plan = Parallelism(
        data=gpus,
        micro_batch=_whole(row, "micro_batch"),
        global_batch=batch,
        zero=int(row["sharding"].removeprefix("zero")),
        overlap=True,
        recompute=row["recompute"],  # type: ignore[arg-type]
    )
    return PublishedRun(
        row=row,
        model=model,
        plan=plan,
        gpu={"h100-80": "h100"}.get(row["gpu"], row["gpu"]),
        nic_gbps=_whole(row, "nic_gbps_a_node", 0),
        program="fsdp",
        precision=_PRECISIONS[row["precision"].strip().lower()],
        measured_step_s=_step_s(batch * sequence, row, "tokens_per_s"),
    )


_BRIDGE_MODELS = {
    "DeepSeekV3": "deepseek-v3",
    "GPT OSS 120B": "gpt-oss-120b",
    "Kimi K2": "kimi-k2",
    "Kimi_K2": "kimi-k2",
    "LLAMA3_70B": "llama-3-70b",
    "LLAMA3.1_405B": "llama-3-405b",
    "LLAMA3_8B": "llama-3-8b",
    "LLAMA3.1_8B": "llama-3-8b",
    "Nemotron_3_Nano": "nemotron-3-nano",
    "Nemotron_3_Super": "nemotron-3-super",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
}
_PRECISIONS: Mapping[str, Precision] = {
    "bf16": "half",
    "fp16": "half",
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}
_FEWER_LAUNCHES = "26.06"
"""From this release on, layers of experts wait no more for the host."""


def _bridge(row: Row) -> PublishedRun:
    """Return a row of NVIDIA's Megatron-Bridge."""
    name = row["model"].strip()
    if name not in _BRIDGE_MODELS:
        raise InputError(f"model {name!r}: its configuration is not known; expected one of {', '.join(_BRIDGE_MODELS)}")
    sequence, batch, gpus = (_whole(row, column) for column in ("sequence", "global_batch", "gpus"))
    degrees: dict[str, Any] = {key: _whole(row, key) for key in ("tensor", "pipeline", "context")}
    copies = gpus // math.prod(degrees.values())
    expert, sharded = _whole(row, "expert"), _whole(row, "fsdp", 0) > 1
    plan = Parallelism(
        **degrees,
        data=copies,
        expert=expert,
        balanced=True,
        own_experts=True,
        interleave=_whole(row, "virtual_pipeline"),
        sequence_parallel=True,
        micro_batch=_whole(row, "micro_batch"),
        global_batch=batch,
        zero=3 if sharded else 1,
        overlap=True,
    )
    new = row["release"].strip() >= _FEWER_LAUNCHES
    return PublishedRun(
        row=row,
        model=dataclasses.replace(_known(_BRIDGE_MODELS[name]), sequence=sequence),
        plan=plan,
        gpu=row["system"].strip().removeprefix("DGX-").lower(),
        program="megatron-bridge" if new else "megatron-bridge-26.04",
        precision=_PRECISIONS[row["precision"].strip().lower()],
        measured_step_s=_step_s(batch * sequence / gpus, row, "tokens_per_s_per_gpu"),
    )


def _titan(row: Row) -> PublishedRun:
    """Return a row of torchtitan."""
    sequence, batch = _whole(row, "sequence"), _whole(row, "global_batch")
    degrees: dict[str, Any] = {key: _whole(row, key) for key in ("tensor", "pipeline", "context")}
    shards, gpus, stages = _whole(row, "fsdp"), _whole(row, "gpus"), degrees["pipeline"]
    schedule = (row.get("schedule") or "").strip().lower()
    precision = _PRECISIONS[row["precision"].strip().lower()]
    recompute = row["recompute"].strip().lower() or "none"
    plan = Parallelism(
        **degrees,
        data=gpus // math.prod(degrees.values()),
        sequence_parallel=True,
        interleave=2 if schedule.startswith(("interleaved", "zbv")) else 1,
        zero_bubble=schedule.startswith(("zb", "interleavedzero")),
        # A local batch is cut into as many micro-batches as there are stages.
        micro_batch=max(1, _whole(row, "local_batch") // stages),
        global_batch=batch,
        # With stages weights stay gathered through a step.
        zero=(1 if stages > 1 else 3) if shards > 1 else 0,
        overlap=True,
        recompute={"selective": "alternate"}.get(recompute, recompute),  # type: ignore[arg-type]
        widths=Widths(logit=14, gradient=4, gathered=1 if precision == "fp8" else 2),
    )
    name = row["model"].strip().replace("llama-3.1", "llama-3")
    compiled = "" if row["compiled"].strip() == "yes" else "-eager"
    return PublishedRun(
        row=row,
        model=dataclasses.replace(_known(name), sequence=sequence),
        plan=plan,
        gpu={"h100-96-hbm2e-500w": "h100-96"}.get(row["gpu"].strip(), row["gpu"].strip()),
        program=f"torchtitan{compiled}",
        precision=precision,
        measured_step_s=_step_s(batch * sequence / gpus, row, "tokens_per_s_per_gpu"),
    )


def _known(name: str) -> Transformer:
    model: Any = MODELS[name]
    assert isinstance(model, Transformer)
    return model


def _step_s(tokens: float, row: Row, column: str) -> float:
    text = (row.get(column) or "").partition("[")[0].strip()
    return tokens / float(text) if text else math.nan
