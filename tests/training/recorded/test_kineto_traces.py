"""Kineto traces: where computation stood still, which collectives there are, and how each fault is told."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kept_numbers import answered
from measurements import DATA, needs_data

from ddlsched.errors import InputError
from ddlsched.training.recorded import kineto_events
from ddlsched.training.recorded.agreement import common_steps
from ddlsched.training.recorded.collective_names import groups_of_configuration, ranks_of
from ddlsched.training.recorded.kineto import (
    Call,
    GpuTraceClock,
    HostTraceClock,
    _nccl_peers,
    _peers,
    _whole,
    calls_of,
    message_group,
    read_kineto,
)
from ddlsched.training.recorded.kineto_events import KinetoEvents, TraceEvent
from ddlsched.training.recorded.rank_steps import RankCommunication
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.workload.dag import CollectiveTask, ComputeTask, IterationDag

SAMPLES = DATA / "training_traces"
real_traces = needs_data("training_traces")
PARTS = "autograd::engine::evaluate_function: "


def event(
    category: str, name: str, begin_us: float, duration_us: float, tid: object = 1, **arguments: Any
) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin_us, "dur": duration_us, "tid": tid, "args": arguments}


def operator(name: str, begin_us: float, duration_us: float, **arguments: Any) -> dict[str, Any]:
    return event("cpu_op", name, begin_us, duration_us, **arguments)


def gloo_reduce(
    begin_us: float, work: tuple[float, float], elements: int, *, at_once: bool = False
) -> list[dict[str, Any]]:
    call = {
        "Input Dims": [[[elements]], [], []],
        "Input type": ["TensorList", "", ""],
        "Concrete Inputs": ["", str(not at_once), "-1"],
    }
    return [
        operator("c10d::allreduce_", begin_us, 5, **call),
        event(
            "user_annotation",
            "gloo:all_reduce",
            work[0],
            work[1] - work[0],
            2,
            **{"Input Dims": [[elements]], "Input type": ["float"]},
        ),
    ]


STEP = event("user_annotation", "ProfilerStep#3", 0, 1000)
DDP = [
    STEP,
    operator("aten::addmm", 10, 190),
    operator(PARTS + "AddmmBackward0", 200, 100),
    operator(PARTS + "AccumulateGrad", 300, 50),
    *gloo_reduce(320, (330, 500), 1000),
    operator(PARTS + "AccumulateGrad", 350, 250),
    *gloo_reduce(580, (600, 700), 2000),
    operator("aten::copy_", 702, 50),
    event("user_annotation", "Optimizer.step#SGD.step", 800, 100),
]
"""One bucket is reduced behind backward, which ends at 600 us; the second is waited for from then to 700 us."""


def write(path: Path, events: list[dict[str, Any]], rank: int = 0, **more: Any) -> Path:
    info = {"backend": "gloo", "rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events} | more))
    return path


def of_a_rank(folder: Path, events: list[dict[str, Any]], **more: Any) -> IterationDag:
    return read_iteration([write(folder / "trace.json", events, **more)]).dag


def short(dag: IterationDag) -> list[tuple[Any, ...]]:
    return [
        (task.name, task.duration_ns / 1000 if isinstance(task, ComputeTask) else task.message_bytes, task.after)
        for task in dag.tasks
    ]


def test_backward_is_cut_at_buckets_and_ends_where_it_waits(tmp_path: Path) -> None:
    assert short(of_a_rank(tmp_path, DDP)) == [
        ("forward-1", 200, ()),
        ("backward-1", 120, ("forward-1",)),
        ("all-reduce-1", 4000, ("backward-1",)),
        ("backward-2", 260, ("backward-1",)),
        ("all-reduce-2", 8000, ("all-reduce-1", "backward-2")),
        ("backward-3", 20, ("backward-2",)),
        ("backward-4", 100, ("backward-3", "all-reduce-1", "all-reduce-2")),
        ("optimizer-1", 200, ("backward-4",)),
    ]


def test_a_call_that_waits_at_once_stands_still_until_its_work_ends(tmp_path: Path) -> None:
    events = [
        STEP,
        operator("aten::mm", 0, 100),
        *gloo_reduce(100, (110, 400), 10, at_once=True),
        operator("aten::mm", 410, 90),
    ]
    assert short(of_a_rank(tmp_path, events)) == [
        ("forward-1", 100, ()),
        ("all-reduce-1", 40, ("forward-1",)),
        ("forward-2", 5, ("forward-1",)),
        ("forward-3", 600, ("forward-2", "all-reduce-1")),
    ]


def test_a_thread_that_is_idle_until_a_work_ends_has_waited_for_it(tmp_path: Path) -> None:
    events = [STEP, *gloo_reduce(100, (110, 400), 10), operator("aten::mm", 105, 95), operator("aten::mm", 401, 99)]
    assert [(name, length) for name, length, _ in short(of_a_rank(tmp_path, events)) if "forward" in name] == [
        ("forward-1", 100),
        ("forward-2", 100),
        ("forward-3", 600),
    ]


def nccl(
    begin_us: float, name: str, elements: int, kernel: tuple[float, float] | None = None, tid: int = 1, **more: Any
) -> list[dict[str, Any]]:
    number = int(begin_us * 1000)
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2}
    common = {"External id": number, "Collective name": name, "In msg nelems": elements, "dtype": "Half"} | group | more
    events = [event("cpu_op", "record_param_comms", begin_us, 2, tid, **common)]
    if kernel is not None:
        begin, end = kernel
        events.append(event("kernel", f"ncclDevKernel_{name}(args)", begin, end - begin, 40, **common))
    return events


def kernel(number: int, launched_us: float, begin_us: float, end_us: float) -> list[dict[str, Any]]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", launched_us, 1, correlation=number),
        event("kernel", "gemm", begin_us, end_us - begin_us, 7, correlation=number),
    ]


def test_on_a_gpu_the_kernel_after_the_wait_stands_still(tmp_path: Path) -> None:
    """Launched at 60 us, it could begin at 300, when the kernels before have ended, and begins at 450."""
    events = [
        STEP,
        *kernel(1, 10, 20, 300),
        *nccl(40, "allreduce", 100, (300, 450)),
        *nccl(50, "wait", 0),
        *kernel(2, 60, 450, 700),
    ]
    assert short(of_a_rank(tmp_path, events)) == [
        ("forward-1", 300, ()),
        ("all-reduce-1", 200, ("forward-1",)),
        ("forward-2", 550, ("forward-1", "all-reduce-1")),
    ]


def test_on_a_gpu_a_late_launch_is_no_wait(tmp_path: Path) -> None:
    """The host launches at 500 us only; the gap before is its own time and stays."""
    events = [
        STEP,
        *kernel(1, 10, 20, 100),
        *nccl(40, "allreduce", 100, (100, 450)),
        *nccl(50, "wait", 0),
        *kernel(2, 500, 510, 700),
    ]
    assert sum(length for name, length, _ in short(of_a_rank(tmp_path, events)) if "forward" in name) == 1000


def test_groups_of_a_gpu_trace_are_told_by_calls(tmp_path: Path) -> None:
    own = {"Process Group Name": "5", "Process Group Ranks": "[0, 1]"}
    paths = []
    for rank in range(3):
        calls = nccl(40, "_allgather_base", 100, (50, 60), **own) if rank < 2 else []
        events = [
            STEP,
            *kernel(1, 10, 20, 40),
            *calls,
            *nccl(70, "allreduce", 100, (80, 90), **{"Process Group Ranks": "[0, 1, 2]"}),
        ]
        paths.append(write(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank, "world_size": 3}))
    dag = read_iteration(paths).dag
    gather = next(task for task in dag.tasks if isinstance(task, CollectiveTask) and task.kind == "all-gather")
    assert (gather.message_bytes, dag.groups[str(gather.group)]) == (400, ((0, 1),))


def test_steps_are_averaged_and_those_that_communicate_otherwise_left_out(tmp_path: Path) -> None:
    def step(number: int, begin_us: float, length_us: float, sizes: list[int]) -> list[dict[str, Any]]:
        parts = [event("user_annotation", f"ProfilerStep#{number}", begin_us, length_us)]
        parts.append(operator(PARTS + "AccumulateGrad", begin_us + 100, length_us - 100))
        for place, size in enumerate(sizes):
            parts += gloo_reduce(
                begin_us + 110 + 10 * place, (begin_us + 112 + 10 * place, begin_us + 115 + 10 * place), size
            )
        return parts

    events = [*step(0, 0, 900, [3000]), *step(1, 1000, 600, [1000, 2000]), *step(2, 2000, 700, [1000, 2000])]
    recorded = read_iteration([write(tmp_path / "trace.json", events)])
    assert (recorded.steps, recorded.dag.compute_ns, recorded.wall_ns) == (2, 650_000, (600_000, 700_000))
    assert recorded.notes == {"steps that communicate otherwise than the last, left out": 1}


@real_traces
def test_real_step_on_two_gpus_reduces_every_parameter_of_resnet_50() -> None:
    recorded = read_iteration([SAMPLES / "resnet50_nccl" / "resnet50_2gpu_nccl_kineto_step.json.gz"])
    collectives = [task for task in recorded.dag.tasks if isinstance(task, CollectiveTask)]
    sizes = [task.message_bytes for task in collectives if task.kind == "all-reduce"]
    assert sizes == [8_196_000, 31_502_336, 26_255_360, 26_550_272, 9_724_160]
    assert sum(sizes) == 4 * 25_557_032
    assert [task.message_bytes for task in collectives if task.kind == "broadcast"] == [212_480, 424]
    assert recorded.num_ranks == 2
    # No kernel waits for the last all-reduce, whose 2 ms end before the host launches on.
    assert recorded.dag.compute_ns == recorded.wall_ns[0] == 219_726_905


@real_traces
def test_real_recording_of_two_ranks_with_gloo_is_cut_at_its_buckets() -> None:
    recorded = read_iteration(sorted((SAMPLES / "gloo_ddp").glob("kineto_*.json.gz")))
    sizes = [task.message_bytes for task in recorded.dag.tasks if isinstance(task, CollectiveTask)]
    assert sizes == [1_198_120, 1_182_720, 591_360]
    assert (recorded.num_ranks, recorded.steps, recorded.classes) == (2, 2, ((0, 1),))
    assert 0 < recorded.dag.compute_ns < max(recorded.wall_ns)


@real_traces
def test_zipped_and_plain_traces_are_read_the_same(tmp_path: Path) -> None:
    zipped = SAMPLES / "gloo_ddp" / "kineto_0.json.gz"
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(zipped.read_bytes()))
    assert read_iteration([plain]).dag == read_iteration([zipped]).dag


def changed(index: int, **fields: Any) -> list[dict[str, Any]]:
    return [each | fields if place == index else each for place, each in enumerate(DDP)]


BAD: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "negative duration": (changed(1, dur=-3), ("event 'aten::addmm'", "field dur: is -3", "expected microseconds")),
    "no duration": (changed(1, dur=None), ("event 'aten::addmm'", "field dur: is None")),
    "endless time": (changed(1, ts=1e300), ("field ts: is 1e+300",)),
    "unknown collective": (
        [*DDP, operator("c10d::reduce_", 900, 1)],
        ("event 'c10d::reduce_' at 900.000 us", "no collective known", "c10d::allreduce_"),
    ),
    "no shapes": (
        [STEP, operator("c10d::allreduce_", 1, 2)],
        ("event 'c10d::allreduce_'", "Input Dims", "record_shapes=True"),
    ),
    "unknown NCCL": ([STEP, *nccl(1, "all_magic", 5, (2, 3))], ("Collective name is 'all_magic'", "allreduce")),
    "unknown type": (
        [STEP, *nccl(1, "allreduce", 5, (2, 3), dtype="Quad")],
        ("dtype 'quad'", "expected a number and a type"),
    ),
    "kernel without call": (
        [STEP, *nccl(1, "allreduce", 5, (2, 3)), event("kernel", "ncclDevKernel_X", 5, 1, 40, **{"External id": 99})],
        ("event 'ncclDevKernel_X'", "no record_param_comms has its External id", "PyTorch 2.2 or later"),
    ),
    "kernels only": (
        [STEP, event("kernel", "ncclKernel_AllReduce", 5, 1, 40)],
        ("event 'ncclKernel_AllReduce'", "no record_param_comms"),
    ),
    "NCCL on the host alone": (
        [STEP, operator("aten::mm", 1, 2), event("user_annotation", "nccl:all_to_all", 5, 1, 1)],
        ("event 'nccl:all_to_all' at 5.000 us", "neither a call nor a kernel tells of it"),
    ),
    "no collective": ([STEP, operator("aten::mm", 1, 2)], ("holds no collective",)),
    "ranks that are none": (
        [STEP, *nccl(1, "allreduce", 5, (2, 3), **{"Process Group Name": "3", "Process Group Ranks": "[0, ..."})],
        ("ranks of group '3' are told nowhere",),
    ),
    "ranks without end": (
        [STEP, *nccl(1, "allreduce", 5, (2, 3), **{"Process Group Name": "3", "Process Group Ranks": "[" * 100_000})],
        ("ranks of group '3' are told nowhere",),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_event_is_named_with_file_and_field(tmp_path: Path, case: str) -> None:
    events, parts = BAD[case]
    refused(write(tmp_path / "trace.json", events), *parts)


def refused(path: Path, *parts: str) -> None:
    with pytest.raises(InputError) as error:
        read_kineto(path)
    for part in (str(path), *parts):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("line 1", "expected a JSON object")),
        ("[]", ("line 1", "expected a JSON object")),
        ('{"a": 1}', ("no key traceEvents",)),
        ('{"traceEvents": {}}', ("line 1", "expected a JSON array")),
        ('{"schema": "1.1.1", "nodes": []}', ("execution trace of PyTorch, which tells no times",)),
        ('{"distributedInfo": 3, "traceEvents": []}', ("distributedInfo", "is 3")),
        ('{"distributedInfo": {"pg_config": 7}, "traceEvents": []}', ("pg_config", "is 7")),
    ],
)
def test_what_is_no_trace_is_refused_in_a_line(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    refused(path, *parts)


def test_a_trace_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", DDP)
    text = path.read_text()
    for size in range(1, len(text) - 1, 37):
        path.write_text(text[:size])
        refused(path, "line 1")
    zipped = tmp_path / "trace.json.gz"
    zipped.write_bytes(gzip.compress(text.encode())[:-10])
    refused(zipped, "cannot be read")


def test_ranks_that_disagree_and_ranks_that_are_missing_are_named(tmp_path: Path) -> None:
    first = write(tmp_path / "0.json", DDP)
    other = write(tmp_path / "1.json", [*DDP, *gloo_reduce(760, (770, 780), 9)], rank=1)
    with pytest.raises(
        InputError, match=r"1.json: in group of all ranks, rank 1 takes part in 3 collectives, rank 0 in 2"
    ):
        read_iteration([first, other])
    third = write(tmp_path / "2.json", DDP, distributedInfo={"rank": 2, "world_size": 3})
    with pytest.raises(InputError, match=r"rank 1 is missing"):
        read_iteration([first, third], num_ranks=3)
    with pytest.raises(InputError, match=r"is of rank 0, as is"):
        read_iteration([first, write(tmp_path / "again.json", DDP)])


def test_formats_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="another format"):
        read_iteration([write(tmp_path / "0.json", DDP), tmp_path / "job.1.et"])
    with pytest.raises(InputError, match=r"suffix is of no format; expected .et"):
        read_iteration([tmp_path / "trace.txt"])


EPOCH_US = 1_693_512_345_678_901


def moved(events: list[dict[str, Any]], by_us: float) -> list[dict[str, Any]]:
    return [each | {"ts": each["ts"] + by_us} for each in events]


@pytest.mark.parametrize("by_us", [EPOCH_US, EPOCH_US + 0.25])
def test_item_18_times_since_1970_are_read_as_any_others(tmp_path: Path, by_us: float) -> None:
    at_epoch = tmp_path / "epoch"
    at_epoch.mkdir()
    assert of_a_rank(at_epoch, moved(DDP, by_us)) == of_a_rank(tmp_path, DDP)


def test_item_18_a_collective_without_a_name_is_known_by_its_kernel_and_its_shapes(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[100], [], []], "Input type": ["c10::Half", "Scalar", ""]}
    old = [
        event("cpu_op", "record_param_comms", 40, 2, 1, **{"External id": 9}, **shapes),
        event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", 300, 150, 40, **{"External id": 9}),
        event("cpu_op", "record_param_comms", 50, 2, 1, **{"External id": 10}),
    ]
    begin, end = kernel(1, 10, 20, 300), kernel(2, 60, 450, 700)
    found = read_iteration([write(tmp_path / "old.json", [STEP, *begin, *old, *end])])
    new = read_iteration([write(tmp_path / "new.json", [STEP, *begin, *nccl(40, "allreduce", 100, (300, 450)), *end])])
    assert found.dag == new.dag
    assert found.notes["record_param_comms without name and kernel, left out"] == 1


def test_item_18_a_collective_whose_size_is_not_told_says_which_pytorch_tells_it(tmp_path: Path) -> None:
    old = [
        event("cpu_op", "record_param_comms", 40, 2, 1, **{"External id": 9}),
        event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half(ncclWorkElem)", 300, 150, 40, **{"External id": 9}),
    ]
    with pytest.raises(InputError, match=r"In msg nelems is None.*PyTorch 2\.2 writes, or record_shapes=True"):
        read_iteration([write(tmp_path / "old.json", [STEP, *kernel(1, 10, 20, 300), *old])])


@pytest.mark.parametrize(
    ("host", "gpu", "work"),
    [
        ("Operator", "Kernel", "nccl:all_reduce"),
        ("cpu_op", "Kernel", "nccl:all_reduce"),
        ("cpu_op", "kernel", "nccl:all_reduce"),
        ("Operator", None, "gloo:all_reduce"),
        ("cpu_op", None, "gloo:all_reduce"),
    ],
)
def test_a_trace_of_pytorch_1_says_which_pytorch_tells_enough(
    tmp_path: Path, host: str, gpu: str | None, work: str
) -> None:
    """It has other categories, and sizes at what is done of a collective only."""
    shapes = {"Input Dims": [[100]], "Input type": ["float"]}
    step = event("Operator" if host == "Operator" else "user_annotation", "ProfilerStep#3", 0, 1000)
    events = [step, event(host, "aten::addmm", 10, 190), event(host, work, 40, 2, 1, **{"External id": 9}, **shapes)]
    if gpu is not None:
        events.append(event(gpu, "ncclKernel_AllReduce_RING_LL_Sum_float(x)", 300, 150, 16, **{"external id": 9}))
    with pytest.raises(InputError, match=r"of PyTorch 2\.0 or later$"):
        read_iteration([write(tmp_path / "old.json", events)])


def test_a_message_that_does_not_tell_its_peer_is_refused_in_a_line(tmp_path: Path) -> None:
    told = {"Input Dims": [[100], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", ""]}
    with pytest.raises(InputError, match="does not tell the other rank; expected a trace with record_shapes=True"):
        read_iteration([write(tmp_path / "send.json", [STEP, operator("c10d::send", 10, 5, **told)])])


def test_a_collective_takes_from_its_kernel_what_its_call_does_not_tell(tmp_path: Path) -> None:
    told = {"In msg nelems": 100, "dtype": "Half", "Group size": 2}
    old = [
        event("cpu_op", "record_param_comms", 40, 2, 1, **{"External id": 9}),
        event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half()", 300, 150, 40, **{"External id": 9}, **told),
    ]
    begin, end = kernel(1, 10, 20, 300), kernel(2, 60, 450, 700)
    found = read_iteration([write(tmp_path / "old.json", [STEP, *begin, *old, *end])])
    new = read_iteration([write(tmp_path / "new.json", [STEP, *begin, *nccl(40, "allreduce", 100, (300, 450)), *end])])
    assert found.dag == new.dag


def test_a_trace_without_steps_is_one_step_until_its_last_kernel_ends() -> None:
    events: Any = SimpleNamespace(operators={"add": [(5, 7)]}, kernels=[SimpleNamespace(begin_ns=6, end_ns=9)])
    assert _whole(events)[:2] == (5, 9)


def test_a_message_tells_its_peer_in_the_third_of_its_inputs() -> None:
    events: Any = SimpleNamespace(rank=1)
    send: Any = SimpleNamespace(arguments={"Concrete Inputs": ["", "", "4"]})
    assert _peers(events, send, "send") == ("send", message_group("send", 1, 4))


def test_a_message_of_nccl_goes_to_the_rank_that_its_call_tells() -> None:
    send: Any = SimpleNamespace(arguments={"Dst Rank": 4})
    events: Any = SimpleNamespace(rank=1)
    assert _nccl_peers(events, send, "send") == ("send", message_group("send", 1, 4))


def test_steps_that_not_every_rank_has_are_counted() -> None:
    step = SimpleNamespace(form=lambda: ())
    traces: Any = [
        SimpleNamespace(rank=n, source=f"{n}", notes=Counter(), steps=dict.fromkeys(range(n), step)) for n in (2, 5)
    ]
    assert common_steps(traces).notes == {"steps that not every rank has, left out": 3}


OPERATORS = {
    "c10d::allreduce_": ("all-reduce", "gloo:all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all-reduce", "gloo:all_reduce", 0),
    "c10d::_allgather_base_": ("all-gather", "gloo:all_gather", 1),
    "c10d::allgather_": ("all-gather", "gloo:all_gather", 1),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", "gloo:all_reduce", 1),
    "c10d::alltoall_base_": ("all-to-all", "gloo:all_to_all", 1),
    "c10d::alltoall_": ("all-to-all", "gloo:all_to_all", 1),
    "c10d::broadcast_": ("broadcast", "gloo:broadcast", 0),
    "c10d::send": ("send", "gloo:send", 0),
    "c10d::recv_": ("send", "gloo:recv", 0),
}
"""Of an operator: its collective, its work, and which of its arguments a rank brings, by PyTorch's signatures."""


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_gloo_brings_one_of_its_arguments(name: str) -> None:
    kind, work_name, place = OPERATORS[name]
    shapes, types = [[3], [5, 2], [7]], ["float", "c10::Half", "double"]
    told = {"Input Dims": shapes, "Input type": types, "Concrete Inputs": ["", "", "1"]}
    works = [TraceEvent(20 + n, 30 + n, 2, work_name, {}) for n in range(2)]
    events = KinetoEvents("file", rank=0, num_ranks=4, calls=[TraceEvent(10, 15, 1, name, told)])
    events.works = works
    (call,) = calls_of(events)
    assert (call.what.kind, call.what.input_bytes) == (kind, [3 * 4, 5 * 2 * 2, 7 * 8][place])
    assert (*call.asked[:3], call.work) == (10, 15, 1, (20, 30))
    assert call.what.group == {"c10d::send": "0 to 1", "c10d::recv_": "1 to 0"}.get(name, "")
    assert call.at_once == (kind == "send")


def host_calls(*called: tuple[str, dict[str, Any]], works: Sequence[str] = (), **told: Any) -> list[Any]:
    events = KinetoEvents("file", num_ranks=3, **told)
    events.calls = [TraceEvent(10 * n, 10 * n + 5, 1, *call) for n, call in enumerate(called)]
    shape = {"Input Dims": [[6]], "Input type": ["int"]}
    events.works = [TraceEvent(100 * n, 100 * n + 50, 2, name, shape) for n, name in enumerate(works)]
    return [(call.what.kind, call.what.input_bytes, call.work, call.at_once) for call in calls_of(events)]


def test_works_of_gloo_belong_to_calls_in_their_order() -> None:
    """A reduce-scatter of a list is an all-reduce for each of the ranks; what its call does not tell, works do."""
    reduce: tuple[str, dict[str, Any]] = ("c10d::allreduce_", {"Concrete Inputs": ["", "False"]})
    names = ["gloo:all_reduce"] * 5
    found = host_calls(reduce, ("c10d::reduce_scatter_", {}), reduce, works=names)
    assert found == [
        ("all-reduce", 24, (0, 50), True),
        ("reduce-scatter", 72, (100, 350), False),
        ("all-reduce", 24, (400, 450), True),
    ]
    barrier: tuple[str, dict[str, Any]] = ("c10d::barrier", {"Concrete Inputs": ["False", "True"]})
    assert host_calls(barrier) == [("barrier", 0, None, False)]
    said = "file, event 'c10d::reduce_scatter_' at 0.000 us: its Input Dims or Input type are missing; expected"
    assert answered(host_calls, ("c10d::reduce_scatter_", {})).startswith(said)
    groups = {"0": (), "1": (0, 1), "2": (2,)}
    said = "file, event 'c10d::barrier' at 0.000 us: does not tell which of 2 groups it is of; expected one group with"
    assert answered(host_calls, barrier, groups=groups).startswith(said)
    assert host_calls(barrier, groups={"0": (), "2": (2,)}) == [("barrier", 0, None, False)]


@pytest.mark.parametrize(
    ("begin", "thread", "is_within"),
    [(100, 1, True), (99, 1, False), (199, 1, True), (200, 1, False), (150, 2, False), (310, 1, True), (250, 1, False)],
)
def test_backward_makes_the_calls_that_begin_within_its_parts(begin: int, thread: int, is_within: bool) -> None:
    event = TraceEvent(begin, begin + 1, thread, "c10d::barrier", {})
    parts = [TraceEvent(*times, 1, "part") for times in ((100, 200), (300, 400))]
    (call,) = calls_of(KinetoEvents("file", calls=[event], backward=parts))
    assert call.in_backward is is_within


def nccl_events(*calls: TraceEvent, kernels: Sequence[TraceEvent] = (), **told: Any) -> KinetoEvents:
    return KinetoEvents("file", **told, calls=list(calls), collective_kernels=list(kernels))


def nccl_call(begin: int, name: str | None, number: int = 1, thread: int = 1, **told: Any) -> TraceEvent:
    arguments = {"External id": number, "In msg nelems": 10, "dtype": "Half"} | told
    if name is not None:
        arguments["Collective name"] = name
    return TraceEvent(begin, begin + 2, thread, "record_param_comms", arguments)


KIND_OF_NAME = {
    "allreduce": "all-reduce", "allreduce_coalesced": "all-reduce", "allgather": "all-gather",
    "_allgather_base": "all-gather", "all_gather": "all-gather", "allgather_into_tensor_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter", "all_to_all": "all-to-all", "all_to_allv": "all-to-all",
    "alltoall": "all-to-all", "alltoall_base": "all-to-all", "broadcast": "broadcast", "_broadcast_oop": "broadcast",
    "barrier": "barrier",
}  # fmt: skip


@pytest.mark.parametrize("name", KIND_OF_NAME)
def test_a_name_of_nccl_is_of_a_kind(name: str) -> None:
    (call,) = calls_of(nccl_events(nccl_call(5, name), rank=0))
    size = 0 if name == "barrier" else 20
    assert (call.what.kind, call.what.input_bytes, call.what.group, call.work) == (KIND_OF_NAME[name], size, "", None)


@pytest.mark.parametrize(
    ("type_name", "size"),
    [*dict.fromkeys(("Double", "Long", "long int"), 8).items(), *dict.fromkeys(("Float", "int", "INT"), 4).items(),
     *dict.fromkeys(("Half", "BFloat16", "c10::Half", "c10::BFloat16", "Short"), 2).items(),
     *dict.fromkeys(("Byte", "Char", "Bool", "unsigned char", "signed char", "Float8_e4m3fn", "c10::Float8_e5m2"), 1)
     .items()],
)  # fmt: skip
def test_numbers_of_a_type_have_its_bytes(type_name: str, size: int) -> None:
    (call,) = calls_of(nccl_events(nccl_call(5, "allreduce", dtype=type_name)))
    assert call.what.input_bytes == 10 * size


def test_what_moves_nothing_is_no_collective() -> None:
    empty = [nccl_call(n, name, n) for n, name in enumerate(("wait", "init", "coalesced"))]
    none = {"In msg nelems": 0, "Out msg nelems": 0}
    nothing = [nccl_call(5, "allreduce", 5, **none), nccl_call(6, "barrier", 6, **none)]
    out_only = nccl_call(7, "broadcast", 7, **{"In msg nelems": 0, "Out msg nelems": 4})
    nameless = nccl_call(8, None, 8)
    events = nccl_events(*empty, *nothing, out_only, nameless)
    assert [(call.what.kind, call.what.input_bytes) for call in calls_of(events)] == [("barrier", 0), ("broadcast", 0)]
    assert events.notes == {"record_param_comms without name and kernel, left out": 1}


def test_a_call_is_waited_for_by_the_next_wait_of_its_thread() -> None:
    waits = [nccl_call(at, "wait", 90 + at, thread) for at, thread in ((4, 1), (9, 2), (20, 1), (40, 1))]
    calls = [nccl_call(5, "allreduce", 1), nccl_call(20, "allreduce", 2), nccl_call(50, "allreduce", 3)]
    found = calls_of(nccl_events(*sorted([*waits, *calls], key=lambda event: event.begin_ns)))
    assert [call.waited_ns for call in found] == [20, 40, None]
    part = TraceEvent(0, 30, 1, "part")
    found = calls_of(nccl_events(*calls, *waits[2:], backward=[part]))
    assert [(call.in_backward, call.waited_ns) for call in found] == [(True, None), (True, None), (False, None)]


def test_kernels_of_a_call_tell_its_name_its_size_and_its_work() -> None:
    def of_kernel(name: str, begin: int, end: int) -> TraceEvent:
        return TraceEvent(begin, end, 40, name, {"External id": 1})

    plain = nccl_call(5, None, **{"Input Dims": [[3, 2], [9]], "Input type": ["float", "float"]})
    del plain.arguments["In msg nelems"]  # type: ignore[union-attr]
    for name, kind in (
        ("ncclKernel_AllReduce_RING", "all-reduce"), ("ncclDevKernel_ReduceScatter_Sum", "reduce-scatter"),
        ("ncclDevKernel_SendRecv(x)", "all-to-all"), ("ncclKernel_AllGather", "all-gather"),
    ):  # fmt: skip
        (call,) = calls_of(nccl_events(plain, kernels=[of_kernel(name, 30, 40), of_kernel(name, 20, 35)]))
        assert (call.what.kind, call.what.input_bytes, call.work) == (kind, 24, (20, 40))


def test_a_group_is_known_by_its_name_or_by_the_call() -> None:
    def group(groups: dict[str, tuple[int, ...]], **told: Any) -> str:
        (call,) = calls_of(nccl_events(nccl_call(5, "allreduce", **told), groups=groups))
        return call.what.group

    named = {"Process Group Name": "7", "Process Group Ranks": "[3, 1]"}
    known: dict[str, tuple[int, ...]] = {}
    assert (group(known, **named), known) == ("7", {"7": (1, 3)})
    assert group({"7": (0, 1)}, **{"Process Group Name": "7"}) == "7"
    assert group({"0": (), "7": (0, 1)}, **{"Process Group Name": "0"}) == ""
    assert group({"7": (0, 1)}) == ""
    said = "file, event 'record_param_comms' at 0.005 us: Process Group Name is missing; expected it where there are"
    assert answered(group, {"0": (), "7": (0, 1)}).startswith(said)
    said = "the ranks of group '7' are told nowhere; expected Process Group Ranks"
    assert said in answered(group, {}, **{"Process Group Name": "7"})


def test_a_message_of_nccl_needs_both_ends() -> None:
    for name, told, rank, found in (
        ("send", {"Dst Rank": 0}, 3, "3 to 0"), ("recv", {"Src Rank": 5}, 3, "5 to 3"),
        ("send", {"Src Rank": 5}, 3, None), ("recv", {"Src Rank": -1}, 3, None), ("recv", {"Src Rank": 5}, None, None),
    ):  # fmt: skip
        events = nccl_events(nccl_call(5, name, **told), rank=rank)
        if found is None:
            assert "tells no other rank (" in answered(calls_of, events)
        else:
            (call,) = calls_of(events)
            assert (call.what.kind, call.what.group) == ("send", found)


def on_gpu(*kernels: tuple[int, int, int], backward: Sequence[tuple[int, int]] = ()) -> GpuTraceClock:
    """Kernels by when they were launched, began and ended."""
    events = KinetoEvents("file", launches={n: launched for n, (launched, _, _) in enumerate(kernels)})
    events.kernels = [
        TraceEvent(begin, end, 7, "gemm", {"correlation": n}) for n, (_, begin, end) in enumerate(kernels)
    ]
    events.backward = [TraceEvent(begin, end, 1, "part") for begin, end in backward]
    return GpuTraceClock(events)


GPU_STEP = TraceEvent(0, 1000, 1, "ProfilerStep#1")


def a_call(*, thread: int = 1, in_backward: bool = False, **told: Any) -> Call:
    asked = TraceEvent(40, 45, thread, "record_param_comms")
    return Call(asked, RankCommunication("all-reduce", 8), in_backward, **told)


def test_a_gpu_has_reached_what_was_launched_before() -> None:
    clock = on_gpu((10, 20, 90), (30, 40, 60), (50, 100, 120))
    assert [clock.reached_ns(at) for at in (5, 10, 11, 30, 50, 51, 200)] == [5, 10, 90, 90, 90, 120, 200]
    unknown = KinetoEvents("file", kernels=[TraceEvent(20, 90, 7, "gemm", {})])
    assert [GpuTraceClock(unknown).reached_ns(at) for at in (20, 21)] == [20, 90]


@pytest.mark.parametrize(
    ("told", "waited"),
    [
        ({"waited_ns": 50, "work": (60, 450)}, (300, 450)),  # it could begin at 300 and begins at 450
        ({"waited_ns": 50, "work": (60, 400)}, (300, 400)),
        ({"waited_ns": 50, "work": (60, 250)}, (300, 300)),
        ({"waited_ns": 9, "work": (60, 450)}, (10, 20)),  # the first kernel, before which nothing ran
        ({"waited_ns": 60, "work": (60, 450)}, None),  # no kernel was launched after it
        ({"waited_ns": None, "work": (60, 450)}, None),
        ({"waited_ns": 50, "work": None}, None),
        ({"in_backward": True, "work": (60, 70)}, (300, 430)),
    ],
)
def test_a_gpu_stands_still_for_the_kernel_after_a_wait(told: dict[str, Any], waited: tuple[int, int] | None) -> None:
    clock = on_gpu((10, 20, 300), (60, 450, 700), backward=[(20, 55)])
    assert clock.wait(a_call(**told), GPU_STEP, 430) == waited


def on_host(*operators: tuple[int, int], backward: Sequence[tuple[int, int]] = ()) -> HostTraceClock:
    events = KinetoEvents("file", operators={1: list(operators)})
    events.backward = [TraceEvent(begin, end, 1, "part") for begin, end in backward]
    return HostTraceClock(events)


@pytest.mark.parametrize(
    ("told", "waited"),
    [
        ({"work": (50, 60_000)}, (10_000, 60_000)),  # idle for 50 us when it ends
        ({"work": (50, 59_999)}, None),
        ({"work": None}, None),
        ({"work": (50, 60_000), "thread": 2}, None),  # of which nothing is known
        ({"work": (50, 5_000)}, None),  # busy then
        ({"work": (50, 900), "at_once": True}, (45, 900)),
        ({"work": (10, 30), "at_once": True}, (45, 45)),
        ({"work": (50, 60), "in_backward": True}, (600, 700)),
    ],
)
def test_a_host_stands_still_where_its_thread_is_idle(told: dict[str, Any], waited: tuple[int, int] | None) -> None:
    clock = on_host((0, 10_000), (40, 45), (70_000, 80_000), backward=[(200, 600)])
    assert clock.wait(a_call(**told), GPU_STEP, 700) == waited
    assert clock.wait(a_call(in_backward=True), GPU_STEP, 500) == (600, 600)
    assert [clock.reached_ns(at) for at in (0, 7, 1000)] == [0, 7, 1000]


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (7, 7000), (7.0004, 7000), (7.0006, 7001), (-3, -3000), (0, 0),
        (1_693_512_345_678_901, 1_693_512_345_678_901_000),
        (1_693_512_345_678_901.25, 1_693_512_345_678_901_250), (100_000_000_000_001.5, 100_000_000_000_001_500),
        (8_999_999_999_999_999, 8_999_999_999_999_999_000), (9_000_000_000_000_000, None), (9e15, None), (-9e15, None),
        (True, None), ("7", None), (None, None), (float("nan"), None),
    ],
)  # fmt: skip
def test_times_are_microseconds(value: Any, ns: int | None) -> None:
    events = KinetoEvents("file")
    told = answered(kineto_events._time_ns, events, 4, {"name": "x", "ts": value}, "ts")
    assert told.startswith("file, line 4, event 'x', field ts: is " if ns is None else str(ns))
    assert told.endswith(f"{value}; expected microseconds" if ns is None else str(ns)) or isinstance(value, str)


def test_backward_of_a_step_ends_with_the_last_of_its_parts() -> None:
    parts = [TraceEvent(*times, 1, "part") for times in ((5, 90), (10, 60), (20, 50), (30, 40))]
    events = KinetoEvents("file", backward=parts)
    found = [events.backward_end_ns(GPU_STEP._replace(begin_ns=b, end_ns=e)) for b, e in ((10, 30), (5, 11), (31, 99))]
    assert found == [60, 90, 31]


@pytest.mark.parametrize(
    ("told", "size"),
    [
        ({"pg_name": "0", "pg_size": 1}, 1),
        ({"pg_name": "0", "group_size": 3, "pg_size": 2}, 3),
        ({"pg_name": "0", "pg_size": 1 << 20}, 1 << 20),
        ({"pg_name": "0", "pg_size": (1 << 20) + 1}, None),
        ({"pg_name": "0", "pg_size": 0}, None),
        ({"pg_name": "0", "pg_size": True}, None),
        ({"pg_name": "4", "pg_size": 2}, None),
        ({"pg_name": "4", "pg_size": 2, "pg_desc": "default_pg"}, 2),
    ],
)
def test_the_default_group_tells_how_many_ranks_there_are(told: dict[str, Any], size: int | None) -> None:
    assert groups_of_configuration("here", [told]) == ({told["pg_name"]: ()}, size)
    both = [told, {"pg_name": "x", "ranks": [2, 0]}]
    assert groups_of_configuration("here", both) == ({told["pg_name"]: (), "x": (0, 2)}, size)


@pytest.mark.parametrize("ranks", [[-1], [(1 << 20) + 1], [1, 1], [True], ["0"], "0", None, {"0": 1}])
def test_ranks_are_different_whole_numbers(ranks: Any) -> None:
    assert "expected a list of different whole numbers from 0" in answered(ranks_of, "here", ranks)
    assert ranks_of("here", [1 << 20, 0]) == (0, 1 << 20)
