"""Kineto traces: where computation stood still, which collectives there are, and how each fault is told."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measurements import DATA, needs_data

from ddlsched.errors import InputError
from ddlsched.training.recorded.agreement import common_steps
from ddlsched.training.recorded.kineto import _nccl_peers, _peers, _whole, message_group, read_kineto
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
