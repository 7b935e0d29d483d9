"""Published step times as they are: rows of llm-foundry's, Megatron-Bridge's and torchtitan's tables, by their headers.

A row becomes a model, a parallelism, a GPU and the efficiency of the program that ran it. One that cannot be said keeps
the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ddlsched.errors import InputError
from ddlsched.io.tables import TableRow, refuse_longer, table_rows
from ddlsched.training.estimate import Amount, Widths
from ddlsched.training.estimate.clusters import parse_cluster
from ddlsched.training.estimate.hardware import Machine, Precision
from ddlsched.training.estimate.models import Transformer
from ddlsched.training.estimate.parallel_layout import MOST, Parallelism, Rule, refuse_broken
from ddlsched.training.estimate.presets import GPUS, MODELS, RELEASE_GAIN, plain_name, unmodelled
from ddlsched.training.estimate.step_estimate import Estimate, estimate

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
    earlier
        How many releases before the one that constants stand for.
    reason
        Why it cannot be said, or nothing.
    """

    row: Row = dataclasses.field(default_factory=dict)
    model: Transformer | None = None
    plan: Parallelism = dataclasses.field(default_factory=Parallelism)
    gpu: str = ""
    nic_gbps: float = 0.0
    program: str = ""
    precision: Precision = "half"
    measured_step_s: float = math.nan
    earlier: int = 0
    reason: str = ""

    @property
    def machine(self) -> Machine:
        """The cluster that it ran on; nodes that it does not fill are as large as divides it."""
        gpus, node = int(self.plan.num_gpus), parse_cluster(self.gpu).gpus_per_node
        per_node = max(size for size in range(1, node + 1) if gpus % size == 0) if gpus > node else node
        cards = self.nic_gbps or parse_cluster(self.gpu).nic_gbps
        fields = f"gpus_per_node={per_node},nic_gbps={cards * per_node / node}"
        return parse_cluster(f"{self.gpu}:{fields}", efficiency=self.program).machine(gpus)

    def estimated(self, machine: Machine | None = None) -> Estimate:
        """Return the estimate, on another machine if one is given."""
        return self._estimated(machine) if machine else self._own_estimate

    @functools.cached_property
    def _own_estimate(self) -> Estimate:
        return self._estimated(self.machine)

    def _estimated(self, machine: Machine) -> Estimate:
        assert self.model is not None, self.reason
        return estimate(self.model, self.plan, machine, precision=self.precision)

    def step_s(self, machine: Machine | None = None, gain: Amount = RELEASE_GAIN) -> Amount:
        """Return the seconds of a step, each earlier release slower by ``gain``."""
        return self.estimated(machine).step_s * (1 + gain) ** self.earlier


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
    header, rows = table_rows(path, "a table of runs")
    read = _reader(header)
    if read is None:
        raise InputError(f"{path}: is no table of published step times; expected the columns of one that is known")
    return [_kept(read, row) for row in rows]


def _reader(header: list[str]) -> Callable[[Row], PublishedRun] | None:
    own = {name.strip().lower() for name in header}
    known = {"accumulation": _foundry, "release": _bridge, "local_batch": _titan}
    return next((read for name, read in known.items() if name in own), None)


def _kept(read: Callable[[Row], PublishedRun], cells: TableRow) -> PublishedRun:
    """Return a row, with the reason why it cannot be said if a value is missing, unknown, or contradicts the others."""
    row = {name: value or "" for name, value in cells.items() if name is not None}
    own = {name.strip().lower(): value.strip() for name, value in row.items()}
    try:
        refuse_longer(cells)
        run = read(own)
        rules = run.plan.rules(_whole(own, "gpus"))
        refuse_broken([*rules, Rule(run.plan.micro_batches >= 1, "has less than one micro-batch a pipeline")])
        if not np.isfinite(run.estimated().step_s):
            raise InputError("its estimate is no finite time")
    except KeyError as error:
        return PublishedRun(row=row, reason=f"has no value for {error}")
    except (InputError, ValueError, OverflowError, ZeroDivisionError) as error:
        return PublishedRun(row=row, reason=str(error))
    return dataclasses.replace(run, row=row)


_NOTHING = ("", "-", "n/a", "na", "none", "no", "nan")


def _whole(row: Row, name: str, default: int = 1) -> int:
    text = (row.get(name) or "").replace(",", "").replace("_", "").lower()
    if text in _NOTHING:
        return default
    if not text.removesuffix(".0").isdecimal() or float(text) > MOST:
        raise InputError(f"{name} is {row[name]}; expected a whole number")
    return int(float(text))


def _gpu(text: str) -> str:
    """Return the name of the GPU that a system or a GPU is spelt as."""
    plain = plain_name(text)
    if "h100" in plain and "96" in plain:
        return "h100-96"
    if "a100" in plain:
        return "a100-40" if "40" in plain else "a100-80"
    found = next((name for name in sorted(GPUS, key=len, reverse=True) if plain_name(name) in plain), None)
    if found is None:
        raise InputError(f"GPU {text!r}: is not known; expected one of {', '.join(GPUS)}")
    return found


def _precision(text: str) -> Precision:
    """Return a precision however it is spelt: ``FP8-CS``, ``amp_bf16``, ``FP8 MX``."""
    plain = plain_name(text)
    if "fp8" in plain and "mx" in plain:
        return "mxfp8"
    known: Mapping[str, Precision] = {
        "fp4": "nvfp4",
        "fp8": "fp8",
        "float8": "fp8",
        "f16": "half",
        "fp16": "half",
        "float16": "half",
        "fp32": "single",
    }
    for part, precision in known.items():
        if part in plain:
            return precision
    raise InputError(f"precision {text!r}: is not known; expected bf16, fp8, mxfp8 or nvfp4")


def _recompute(text: str) -> str:
    kind = text.lower()
    return "none" if kind in (*_NOTHING, "false") else "full" if kind in ("true", "yes") else kind


def _model(text: str, sequence: int) -> Transformer:
    """Return the model of a name however it is spelt."""
    found: Any = next((model for name, model in MODELS.items() if plain_name(name) == plain_name(text)), None)
    if reason := unmodelled(text):
        raise InputError(f"model {text!r}: {reason}")
    if not isinstance(found, Transformer):
        raise InputError(f"model {text!r}: its configuration is not known; expected a name of a preset")
    return dataclasses.replace(found, sequence=sequence)


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
        zero=_SHARDINGS.get(row["sharding"].lower(), 3),
        overlap=True,
        recompute=_recompute(row["recompute"]),
    )
    return PublishedRun(
        model=model,
        plan=plan,
        gpu=_gpu(row["gpu"]),
        nic_gbps=_whole(row, "nic_gbps_a_node", 0),
        program="fsdp",
        precision=_precision(row["precision"]),
        measured_step_s=_step_s(batch * sequence, row, "tokens_per_s"),
    )


_SHARDINGS = {"none": 0, "zero0": 0, "ddp": 0, "zero1": 1, "zero2": 2, "shard_grad_op": 2}
_OFFLOADED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_EARLIER = {"26.02": 2, "26.02.01": 1}
_GRAPHS_FROM = "26.06"


def _in_graphs(row: Row, model: Transformer) -> bool:
    """Return whether a whole step was launched as one CUDA graph, as recipes of Megatron-Bridge v0.4.2 and v0.5.0 say.

    From 26.06 on mixtures of experts in MXFP8 are, within racks of NVLink (and the small Qwen3 on B300); hybrids are
    not, nor is Kimi K2.
    """
    gpu, name = _gpu(row["system"]), plain_name(row["model"])
    told = gpu.startswith("gb") or (gpu == "b300" and name.startswith("qwen330b"))
    able = model.experts > 1 and model.scan is None and not name.startswith("kimi")
    return told and able and row["release"] >= _GRAPHS_FROM and _precision(row["precision"]) == "mxfp8"


def _bridge(row: Row) -> PublishedRun:
    """Return a row of NVIDIA's Megatron-Bridge."""
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
    model = _model(row["model"], sequence)
    run = PublishedRun(
        model=model,
        plan=plan,
        gpu=_gpu(row["system"]),
        program="megatron-bridge-graphs" if _in_graphs(row, model) else "megatron-bridge",
        precision=_precision(row["precision"]),
        measured_step_s=_step_s(batch * sequence / gpus, row, "tokens_per_s_per_gpu"),
        earlier=_EARLIER.get(row["release"], 0),
    )
    return _held(run)


def _held(run: PublishedRun) -> PublishedRun:
    """Return a run with the fastest that makes it fit, of which its table says nothing; it ran.

    Activations are sent to the host or computed again, and if that is not enough, weights are sharded.
    """
    if run.estimated().fits:
        return run
    for zero in (run.plan.zero, 3):
        tried = [
            dataclasses.replace(run, plan=dataclasses.replace(run.plan, zero=zero, offload=share, recompute=kind))
            for kind in ("none", "elementwise", "full")
            for share in _OFFLOADED
        ]
        fitting = [one for one in tried if one.estimated().fits]
        if fitting:
            return min(fitting, key=lambda one: float(one.estimated().step_s))
    return run


def _titan(row: Row) -> PublishedRun:
    """Return a row of torchtitan."""
    sequence, batch = _whole(row, "sequence"), _whole(row, "global_batch")
    degrees: dict[str, Any] = {key: _whole(row, key) for key in ("tensor", "pipeline", "context")}
    sharded, gpus, stages = _whole(row, "fsdp") * degrees["context"], _whole(row, "gpus"), degrees["pipeline"]
    schedule = row.get("schedule", "").lower()
    precision = _precision(row["precision"])
    recompute = _recompute(row["recompute"])
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
        zero=(1 if stages > 1 else 3) if sharded > 1 else 0,
        shards=sharded,
        overlap=True,
        recompute={"selective": "alternate"}.get(recompute, recompute),
        widths=Widths(logit=14, gradient=4, gathered=1 if precision == "fp8" else 2, whole_inputs=True, kept_logit=4),
    )
    compiled = "" if row["compiled"].lower() in ("yes", "true", "1") else "-eager"
    return PublishedRun(
        model=_model(row["model"], sequence),
        plan=plan,
        gpu=_gpu(row["gpu"]),
        program=f"torchtitan{compiled}",
        precision=precision,
        measured_step_s=_step_s(batch * sequence / gpus, row, "tokens_per_s_per_gpu"),
    )


def _step_s(tokens: float, row: Row, column: str) -> float:
    text = (row.get(column) or "").partition("[")[0].replace(",", "").strip()
    return tokens / float(text) if text.lower() not in _NOTHING else math.nan
