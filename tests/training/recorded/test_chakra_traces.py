"""Chakra traces: what becomes of nodes, ranks and groups, and how each fault is told."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chakra_files import (
    COLLECTIVE,
    COMPUTE,
    METADATA,
    RECEIVE,
    SEND,
    chakra_node,
    large_trace,
    message,
    varint,
    write_chakra,
)
from command_line import run
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from kept_numbers import answered
from measurements import DATA, needs_data

import ddlsched
from ddlsched.errors import InputError
from ddlsched.network.contention import MaxMin
from ddlsched.training.recorded import chakra, chakra_records
from ddlsched.training.recorded.alone import Card, summary, timed_alone
from ddlsched.training.recorded.chakra_records import NODE
from ddlsched.training.recorded.merging import RecordedIteration
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.workload.dag import AllReduceTask, CollectiveTask, ComputeTask, IterationDag

MIB = 1 << 20
ALL_REDUCE = {"is_cpu_op": False, "comm_type": 0}


def compute(node_id: int, duration_us: int, *after: int, **more: Any) -> bytes:
    return chakra_node(node_id, COMPUTE, after=after, duration_us=duration_us, attributes={"is_cpu_op": False}, **more)


def reduce(node_id: int, size: int, *after: int, **attributes: Any) -> bytes:
    return chakra_node(node_id, COLLECTIVE, after=after, attributes=ALL_REDUCE | {"comm_size": size} | attributes)


SERIAL = [compute(0, 400), compute(1, 900, 0), reduce(2, 48 * MIB, 1)]
OVERLAP = [
    compute(0, 400),
    *(compute(i, 300, i - 1) for i in (1, 2, 3)),
    *(reduce(4 + i, size * MIB, 1 + i) for i, size in enumerate((8, 24, 16))),
]


def ranks(folder: Path, *nodes: list[bytes]) -> list[Path]:
    return [write_chakra(folder / f"job.{rank}.et", each) for rank, each in enumerate(nodes)]


def read(folder: Path, *nodes: list[bytes], **more: Any) -> RecordedIteration:
    return read_iteration(ranks(folder, *nodes), **more)


def of_a_rank(folder: Path, nodes: list[bytes], num_ranks: int = 2) -> IterationDag:
    return read(folder, nodes, num_ranks=num_ranks).dag


def short(dag: IterationDag) -> list[tuple[Any, ...]]:
    return [
        (task.name, task.duration_ns if isinstance(task, ComputeTask) else task.message_bytes, task.after)
        for task in dag.tasks
    ]


def test_chains_of_computation_become_one_task_and_collectives_of_a_group_follow_each_other(tmp_path: Path) -> None:
    assert short(read(tmp_path, *[OVERLAP] * 4).dag) == [
        ("compute-1", 700_000, ()),
        ("all-reduce-1", 8 * MIB, ("compute-1",)),
        ("compute-2", 300_000, ("compute-1",)),
        ("all-reduce-2", 24 * MIB, ("all-reduce-1", "compute-2")),
        ("compute-3", 300_000, ("compute-2",)),
        ("all-reduce-3", 16 * MIB, ("all-reduce-2", "compute-3")),
    ]


@pytest.mark.parametrize(("nodes", "astra_sim_ns"), [(SERIAL, 57_580_000), (OVERLAP, 57_040_000)])
def test_simulated_step_is_that_of_astra_sim(tmp_path: Path, nodes: list[bytes], astra_sim_ns: int) -> None:
    dag = read(tmp_path, *[nodes] * 4).dag
    job = ddlsched.Job(job_id="a", arrival_s=0, num_gpus=4, iterations=1, iteration=dag, gpu_memory_mb=1)
    result = ddlsched.simulate(
        ddlsched.Workload.of([job]),
        cluster=ddlsched.Cluster(num_servers=4, gpus_per_server=1, topology="star:nic_gbps=100"),
        placement="first-fit",
        contention=MaxMin(latency_s=6 * 5e-6, per_byte_s=1 / (1.25 * 2**30)),
    )
    assert result.summary()["makespan_s"] * 1e9 == pytest.approx(astra_sim_ns, abs=1)


@needs_data("training_traces")
@pytest.mark.parametrize(("name", "nodes"), [("serial", SERIAL), ("ddp_overlap", OVERLAP)])
def test_files_written_with_mlc_chakra_are_read_as_ours(tmp_path: Path, name: str, nodes: list[bytes]) -> None:
    samples = sorted((DATA / "training_traces" / "chakra_synthetic").glob(f"{name}.*.et"))
    assert read_iteration(samples).dag == read(tmp_path, *[nodes] * 4).dag


def test_gzipped_and_unpacked_traces_are_read_the_same(tmp_path: Path) -> None:
    whole = of_a_rank(tmp_path, SERIAL)
    unpacked = [
        compute(0, 400),
        chakra_node(1, COMPUTE, control=[0], duration_us=900),
        chakra_node(2, COLLECTIVE, control=[1], attributes=ALL_REDUCE | {"comm_size": 48 * MIB}),
    ]
    assert of_a_rank(tmp_path, unpacked) == whole
    zipped = tmp_path / "zipped.0.et.gz"
    zipped.write_bytes(gzip.compress((tmp_path / "job.0.et").read_bytes()))
    assert read_iteration([zipped], num_ranks=2).dag == whole


@pytest.mark.parametrize("size", [(7, MIB), (9, MIB), (11, MIB), (13, MIB), (15, 2 * MIB), (17, 2 * MIB)])
def test_sizes_are_taken_in_any_integer_type(tmp_path: Path, size: tuple[int, int]) -> None:
    nodes = [compute(0, 1), reduce(1, 0, 0, comm_size=size)]
    assert short(of_a_rank(tmp_path, nodes))[1][1] == MIB


def test_a_computation_that_needs_a_collective_waits_for_it(tmp_path: Path) -> None:
    nodes = [compute(0, 10), reduce(1, MIB, 0), compute(2, 20, 0), compute(3, 30, 1, 2)]
    assert short(of_a_rank(tmp_path, nodes)) == [
        ("compute-1", 10_000, ()),
        ("all-reduce-1", MIB, ("compute-1",)),
        ("compute-2", 20_000, ("compute-1",)),
        ("compute-3", 30_000, ("compute-2", "all-reduce-1")),
    ]


def test_host_and_gpu_compute_at_the_same_time(tmp_path: Path) -> None:
    """The GPU starts after 10 us on the host, which goes on for 25 more; the all-reduce waits for both."""
    host = {"is_cpu_op": True}
    nodes = [
        chakra_node(0, COMPUTE, duration_us=10, attributes=host),
        chakra_node(1, COMPUTE, after=[0], duration_us=25, attributes=host),
        compute(2, 40, 0),
        reduce(3, MIB, 1, 2),
    ]
    assert short(of_a_rank(tmp_path, nodes))[0] == ("compute-1", 50_000, ())


def test_all_gather_holds_what_each_rank_has_after_it(tmp_path: Path) -> None:
    nodes = [compute(0, 10), reduce(1, MIB, 0, comm_type=2), reduce(2, MIB, 1, comm_type=7)]
    dag = of_a_rank(tmp_path, nodes, num_ranks=4)
    kinds = [(task.kind, task.message_bytes) for task in dag.tasks if isinstance(task, CollectiveTask)]
    assert kinds == [("all-gather", 4 * MIB), ("reduce-scatter", MIB)]


GROUPS = [
    {"pg_name": "0", "ranks": [], "group_size": 4},
    {"pg_name": "a", "ranks": [0, 1]},
    {"pg_name": "b", "ranks": [2, 3]},
]


def stage(first: bool, group: str) -> list[bytes]:
    """A rank of a two-stage pipeline whose stages reduce among their own two ranks, and then among all."""
    setting = chakra_node(9, METADATA, name="## process_group:init ##", inputs=json.dumps(GROUPS))
    return [
        setting,
        compute(1, 10 if first else 30),
        reduce(2, MIB, 1, pg_name=group),
        compute(3, 5, 2),
        reduce(4, 2 * MIB, 3),
    ]


def test_groups_of_ranks_become_groups_of_workers(tmp_path: Path) -> None:
    recorded = read(tmp_path, *[stage(True, "a")] * 2, *[stage(False, "b")] * 2)
    assert recorded.classes == ((0, 1), (2, 3))
    assert recorded.dag.groups == {
        "ranks 0-1": ((0, 1),),
        "ranks 2-3": ((2, 3),),
        "group a": ((0, 1),),
        "group b": ((2, 3),),
    }
    tasks = {task.name: task for task in recorded.dag.tasks}
    assert tasks["all-reduce-3"].after == ("compute-1 of ranks 2-3",)
    assert tasks["all-reduce-3"].group == "group b"
    assert tasks["all-reduce-2"] == AllReduceTask(
        name="all-reduce-2", message_bytes=2 * MIB, after=("compute-2 of ranks 0-1", "compute-2 of ranks 2-3")
    )


def test_a_send_and_its_receive_are_one_task_of_two_ranks(tmp_path: Path) -> None:
    send = chakra_node(1, SEND, after=[0], attributes={"comm_dst": 1, "comm_size": MIB, "comm_tag": 3})
    receive = chakra_node(0, RECEIVE, attributes={"comm_src": 0, "comm_size": MIB, "comm_tag": 3})
    recorded = read(tmp_path, [compute(0, 10), send], [receive, compute(1, 20, 0)])
    (task,) = (task for task in recorded.dag.tasks if isinstance(task, CollectiveTask))
    assert (task.kind, task.message_bytes, task.after) == ("send", MIB, ("compute-1 of rank 0",))
    assert recorded.dag.groups[str(task.group)] == ((0, 1),)
    alone = timed_alone(recorded.dag, 2, Card(gbps=8.0))
    assert alone.iteration_ns == 10_000 + MIB + 20_000


def test_from_wait_to_wait_the_slowest_rank_counts(tmp_path: Path) -> None:
    """Rank 0 is slow before the wait, rank 1 after it: neither makes up for the other's delay."""
    nodes = [[compute(0, a), reduce(1, MIB, 0), compute(2, b, 1), reduce(3, MIB, 2)] for a, b in ((50, 10), (20, 30))]
    assert [task[1] for task in short(read(tmp_path, *nodes).dag)] == [50_000, MIB, 30_000, MIB]


def test_control_dependencies_that_contradict_data_are_left_out_and_counted(tmp_path: Path) -> None:
    """A call stack in which the caller ends after what it calls, as in the trace among mlcommons/chakra's own tests."""
    nodes = [compute(0, 10, control=[1]), compute(1, 20, 0), reduce(2, MIB, 1)]
    recorded = read(tmp_path, nodes, num_ranks=2)
    assert short(recorded.dag) == [("compute-1", 30_000, ()), ("all-reduce-1", MIB, ("compute-1",))]
    assert recorded.notes == {"control dependencies contradict those of data: all of control left out": 1}


def test_a_host_call_of_a_collective_is_computation_of_the_host(tmp_path: Path) -> None:
    """As in the trace of ResNet-50 among mlcommons/chakra's own tests."""
    call = chakra_node(1, COLLECTIVE, name="c10d::allreduce_(0)", duration_us=7, attributes={"is_cpu_op": True})
    recorded = read(tmp_path, [call, reduce(2, MIB, 1)], num_ranks=2)
    assert short(recorded.dag) == [("compute-1", 7000, ()), ("all-reduce-1", MIB, ("compute-1",))]
    note = "host calls of collectives, whose own nodes tell their sizes, kept as host computation"
    assert recorded.notes == {note: 1}
    with pytest.raises(InputError, match=r"holds no collective"):
        read(tmp_path, [call], num_ranks=2)


def test_dangling_dependencies_are_dropped_and_counted(tmp_path: Path) -> None:
    recorded = read(tmp_path, [compute(0, 10, 77), reduce(1, MIB, 0, 88)], num_ranks=2)
    assert short(recorded.dag) == [("compute-1", 10_000, ()), ("all-reduce-1", MIB, ("compute-1",))]
    assert recorded.notes == {"dependencies on nodes that are not in the file, dropped": 2}


def test_summary_tells_bytes_critical_path_and_exposed_communication(tmp_path: Path) -> None:
    """On cards of 8 Gbit/s a byte takes 1 ns; the three all-reduces of a ring of 4 send 1.5 times their bytes."""
    found = summary(read(tmp_path, *[OVERLAP] * 4), Card(gbps=8.0))
    communication_s = 1.5 * 48 * MIB / 1e9
    assert found["collectives"] == [{"kind": "all-reduce", "group": "all ranks", "count": 3, "bytes": 48 * MIB}]
    assert (found["ranks"], found["nodes"], found["tasks"]) == (4, 28, 6)
    assert found["iteration_alone_s"] == pytest.approx(0.0007 + communication_s)
    assert found["exposed_share_of_iteration"] == pytest.approx((communication_s - 0.0006) / (0.0007 + communication_s))


@pytest.mark.long
@given(st.data())
def test_coarse_and_fine_graphs_run_alike(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A rank's computation is a chain; each collective starts after one of its nodes and is needed by a later one."""
    count = data.draw(st.integers(2, 12))
    durations_us = data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count).filter(any))
    places = st.tuples(st.integers(0, count - 1), st.integers(1, count), st.integers(1, 100_000))
    collectives = sorted(data.draw(st.lists(places, min_size=1, max_size=5)))
    needed: list[list[int]] = [[] for _ in range(count)]
    for number, (after, by, _) in enumerate(collectives):
        if after < by < count:
            needed[by].append(count + number)
    nodes = [
        compute(node, us, *([node - 1] if node else []), *needed[node]) for node, us in enumerate(durations_us)
    ] + [reduce(count + number, size, after) for number, (after, _, size) in enumerate(collectives)]
    coarse = of_a_rank(tmp_path_factory.mktemp("traces"), nodes)
    fine = [
        ComputeTask(
            name=f"c{node}",
            duration_ns=1000 * us,
            after=(*([f"c{node - 1}"] if node else []), *(f"r{each - count}" for each in needed[node])),
        )
        for node, us in enumerate(durations_us)
    ] + [
        AllReduceTask(
            name=f"r{number}", message_bytes=size, after=(f"c{after}", *([f"r{number - 1}"] if number else []))
        )
        for number, (after, _, size) in enumerate(collectives)
    ]
    assert _starts(coarse) == _starts(IterationDag(tuple(fine)))


def _starts(dag: IterationDag) -> tuple[int, list[int]]:
    """Return the length of an iteration and when its collectives start."""
    alone = timed_alone(dag, 2, Card(gbps=8.0, latency_us=3.0))
    collectives = [number for number, task in enumerate(dag.tasks) if isinstance(task, CollectiveTask)]
    return alone.iteration_ns, sorted(alone.begins_ns[number] for number in collectives)


def test_a_ring_of_four_takes_six_steps_of_a_quarter() -> None:
    task = AllReduceTask(name="r", message_bytes=4000.0)
    assert Card(gbps=8.0, latency_us=3.0).alone_ns(task, 4) == 6 * (1000 + 3000)


@pytest.mark.slow
def test_a_long_trace_is_read_in_pieces(tmp_path: Path) -> None:
    recorded = read_iteration([large_trace(tmp_path / "large.0.et", 30_000)], num_ranks=8)
    assert (recorded.nodes, len(recorded.dag.tasks)) == (30_000, 60)
    assert recorded.dag.compute_ns == 1000 * sum(node % 13 for node in range(30_000) if node % 1000 != 999)


BAD: dict[str, tuple[list[bytes], tuple[str, ...]]] = {
    "unknown kind": ([compute(0, 1), chakra_node(5, 42)], ("node 5", "field type: is 42", "1 (metadata) to 7")),
    "no kind": ([chakra_node(5, 0)], ("node 5", "field type: is 0")),
    "negative duration": ([compute(3, -7)], ("node 3", "field duration_micros: is -7", "expected microseconds")),
    "only zero durations": ([compute(0, 0), reduce(1, 8, 0)], ("field duration_micros: no node takes time",)),
    "unknown collective": ([reduce(4, 8, comm_type=3)], ("node 4", "field comm_type: is 3", "0 (all-reduce)")),
    "no collective type": (
        [chakra_node(4, COLLECTIVE, attributes={"comm_size": 8})],
        ("node 4", "field comm_type: is missing"),
    ),
    "empty collective": ([compute(0, 1), reduce(4, 0)], ("node 4", "field comm_size: is 0", "bytes")),
    "text for a size": ([compute(0, 1), reduce(4, 0, comm_size="8")], ("node 4", "field comm_size: is 8")),
    "cycle": (
        [compute(0, 1, 2), compute(1, 1, 0), compute(2, 1, 1), reduce(3, 8, 2)],
        ("field data_deps", "wait for each other", "expected no cycle"),
    ),
    "same id": ([compute(6, 1), compute(6, 1)], ("node 6", "its id occurs twice")),
    "no collective": ([compute(0, 1)], ("holds no collective",)),
    "unknown group": ([compute(0, 1), reduce(1, 8, 0, pg_name="7")], ("field pg_name", "'7' is defined nowhere")),
    "empty message": (
        [chakra_node(1, SEND, attributes={"comm_dst": 1, "comm_size": 0})],
        ("node 1", "field comm_size: is 0", "the bytes of the message"),
    ),
    "send to itself": (
        [chakra_node(1, SEND, attributes={"comm_dst": 0, "comm_size": 8})],
        ("node 1", "field comm_dst: is 0", "another rank"),
    ),
    "groups that are none": (
        [chakra_node(1, METADATA, name="## process_group:init ##", inputs='[{"pg_name": "0", "ranks": [1, 1]}]')],
        ("node 1", "ranks are [1, 1]", "different whole numbers"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_node_is_named_with_file_and_field(tmp_path: Path, case: str) -> None:
    nodes, parts = BAD[case]
    refused(tmp_path, parts, lambda: read(tmp_path, nodes, num_ranks=2))


def refused(folder: Path, parts: tuple[str, ...], action: Any) -> None:
    with pytest.raises(InputError) as error:
        action()
    for part in ("job.0.et", *parts):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


DAMAGED = {
    "cut off": (lambda whole: whole[:-3], ("byte ", "the last record is cut off")),
    "cut off in a length": (lambda whole: whole + b"\xff", ("the last record is cut off",)),
    "text": (lambda _: b'{"traceEvents": []}' * 20, ("GlobalMetadata", "Chakra")),
    "empty": (lambda _: b"", ("is empty",)),
    "a huge record": (lambda whole: whole + b"\xff" * 9 + b"\x01", ("a record of", "bytes begins")),
    "only metadata": (lambda whole: whole[:8], ("holds no nodes",)),
    "wrong wire type": (lambda whole: whole + b"\x02\x0b\x01", ("node 4 of the file: is damaged",)),
    "a field too long": (lambda whole: whole + b"\x03\x12\x7fa", ("node 4 of the file: is damaged",)),
    "a number too long": (lambda whole: whole + b"\x0c\x08" + b"\xff" * 11, ("node 4 of the file: is damaged",)),
    "zipped and cut off": (lambda whole: gzip.compress(whole * 50)[:-20], ("cannot be read",)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file_is_refused_in_a_line(tmp_path: Path, case: str) -> None:
    damage, parts = DAMAGED[case]
    (path,) = ranks(tmp_path, SERIAL)
    path.write_bytes(damage(path.read_bytes()))
    refused(tmp_path, parts, lambda: read_iteration([path], num_ranks=2))


@pytest.mark.long
def test_every_way_to_cut_a_file_off_is_noticed(tmp_path: Path) -> None:
    (path,) = ranks(tmp_path, SERIAL)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            read_iteration([path], num_ranks=2)


def test_a_file_of_10_gb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (path,) = ranks(tmp_path, SERIAL)
    os.truncate(path, 10 * 10**9)
    refused(tmp_path, ("is larger than 4,295 MB", "expected"), lambda: read_iteration([path], num_ranks=2))


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    files = ranks(tmp_path, *[SERIAL] * 4)
    refused(
        tmp_path, ("rank 2 is missing (3 of 4 files)",), lambda: read_iteration([*files[:2], files[3]], num_ranks=4)
    )


def test_of_several_files_each_tells_its_rank(tmp_path: Path) -> None:
    paths = ranks(tmp_path, SERIAL, SERIAL)
    paths[1] = paths[1].rename(tmp_path / "job.et")
    with pytest.raises(InputError, match=r"job\.et: does not tell its rank; expected a name such as job\.0\.et"):
        read_iteration(paths)


def test_how_many_ranks_there_are_must_be_known(tmp_path: Path) -> None:
    refused(tmp_path, ("does not tell how many ranks",), lambda: read(tmp_path, SERIAL))


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ([*SERIAL[:2], reduce(2, 8, 1)], ("collective 1: input_bytes is 8, on rank 0 50331648",)),
        ([*SERIAL[:2], reduce(2, 48 * MIB, 1, comm_type=7)], ("collective 1: kind is reduce-scatter", "all-reduce")),
        ([*SERIAL, reduce(3, 8, 2)], ("takes part in 2 collectives, rank 0 in 1",)),
    ],
)
def test_ranks_that_disagree_are_named(tmp_path: Path, other: list[bytes], parts: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, SERIAL, other)
    for part in ("job.1.et: in group of all ranks, rank 1", *parts):
        assert part in str(error.value)


def test_ranks_that_wait_for_each_other_in_a_circle_are_refused(tmp_path: Path) -> None:
    """Two messages, each sent only after the other has come."""
    nodes = []
    for rank in (0, 1):
        receive = chakra_node(0, RECEIVE, attributes={"comm_src": 1 - rank, "comm_size": 8})
        send = chakra_node(2, SEND, after=[1], attributes={"comm_dst": 1 - rank, "comm_size": 8})
        nodes.append([receive, compute(1, 5, 0), send])
    with pytest.raises(InputError, match="form a cycle"):
        read(tmp_path, *nodes)


def test_one_rank_stands_for_all_only_if_its_groups_are_of_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="group 'a' of 2 of the 4 ranks; expected a file a rank"):
        read(tmp_path, stage(True, "a"))


def graph_json(folder: Path, rank: int, *nodes: dict[str, Any]) -> Path:
    path = folder / f"job.{rank}.json"
    path.write_text(json.dumps({"workload_graph": list(nodes)}))
    return path


def messages_json(folder: Path, rank: int, nodes: list[bytes]) -> Path:
    """Return a trace as Chakra's own converter to JSON writes it: messages one behind the other."""
    texts = [json_format.MessageToJson(NODE.FromString(node)) for node in nodes]
    path = folder / f"job.{rank}.json"
    path.write_text("".join([json.dumps({"version": "0.0.4"}), *texts]) + "\n")
    return path


def test_a_workload_graph_in_json_is_read_as_the_trace(tmp_path: Path) -> None:
    nodes = (
        {"Id": 0, "Name": "a", "NodeType": 4, "is_cpu_op": False, "runtime": 400, "data_deps": []},
        {"Id": 1, "Name": "b", "NodeType": 4, "is_cpu_op": False, "runtime": 900, "data_deps": [0]},
        {
            "Id": 2,
            "Name": "c",
            "NodeType": 7,
            "is_cpu_op": False,
            "data_deps": [1],
            "comm_type": 0,
            "comm_size": 48 * MIB,
        },
    )
    paths = [graph_json(tmp_path, rank, *nodes) for rank in range(4)]
    assert read_iteration(paths).dag == read(tmp_path, *[SERIAL] * 4).dag
    assert run("validate", paths[0]).exit_code == 0


def test_item_18_messages_in_one_file_of_json_are_read_as_the_trace(tmp_path: Path) -> None:
    paths = [messages_json(tmp_path, rank, OVERLAP) for rank in range(4)]
    assert read_iteration(paths).dag == read(tmp_path, *[OVERLAP] * 4).dag


@pytest.mark.parametrize(
    "text", ['{"workload_graph": 3}', '{"workload_graph": [{"Id": "a"}]}', '{"version": "1"}{"type": "COMM_COLL_NODE"']
)
def test_json_that_is_no_trace_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.0.json").write_text(text)
    with pytest.raises(InputError, match="is no Chakra trace in JSON") as error:
        read_iteration([tmp_path / "job.0.json"], num_ranks=2)
    assert "\n" not in str(error.value)


def test_item_18_a_trace_of_nothing_but_a_collective_needs_no_durations(tmp_path: Path) -> None:
    assert short(read(tmp_path, *[[reduce(0, MIB)]] * 16).dag) == [("all-reduce-1", MIB, ())]


def ring(rank: int, ranks: int, rounds: int, size: int) -> list[bytes]:
    """Return a ring as ASTRA-sim's custom collectives have it: send on, receive, compute, and so on."""
    nodes = []
    for step in range(rounds):
        first = 3 * step
        to, sender = {"comm_dst": (rank + 1) % ranks}, {"comm_src": (rank - 1) % ranks}
        nodes += [
            chakra_node(first, SEND, after=[first - 1] * bool(step), attributes=to | {"comm_size": size}),
            chakra_node(first + 1, RECEIVE, after=[first], attributes=sender | {"comm_size": size}),
            compute(first + 2, 7, first + 1),
        ]
    return nodes


def test_item_18_sends_in_a_ring_take_a_message_and_a_computation_a_step(tmp_path: Path) -> None:
    recorded = read(tmp_path, *(ring(rank, 4, 6, 125_000) for rank in range(4)))
    assert sum(isinstance(task, CollectiveTask) for task in recorded.dag.tasks) == 24
    alone = timed_alone(recorded.dag, 4, Card(gbps=10.0))
    assert alone.iteration_ns == 6 * (100_000 + 7_000)
    assert recorded.notes["messages would wait for each other in a circle: none waits for its receiver"] == 1


def test_what_is_known_of_nodes_in_json() -> None:
    text = ' {"version": "0.0.4"} {"id": 7, "name": "a"}\n\n{"id": 8, "type": 7, "other": 1} '
    assert [(node.node_id, node.name, node.kind) for node in chakra_records._messages(text)] == [
        (7, "a", 0),
        (8, "", 7),
    ]
    given = {"Id": 3, "NodeType": 4, "runtime": 9, "comm_size": 0, "pg_name": "x", "ctrl_deps": [1], "data_deps": [2]}
    (node,) = chakra_records._graph(json.dumps({"workload_graph": [given]}))
    assert (node.node_id, node.kind, node.duration_us, node.control, node.data) == (3, 4, 9, [1], [2])
    assert node.attributes == {"is_cpu_op": False, "comm_size": 0, "pg_name": "x"}


KINDS_OF_NUMBERS: dict[int, tuple[bytes, Any]] = {
    3: (struct.pack("<d", 2.5), 2.5), 5: (struct.pack("<f", 0.25), 0.25), 7: (varint(5), 5),
    9: (varint((1 << 64) - 5), -5), 11: (varint(7), 7), 13: (varint(1 << 63), 1 << 63), 15: (varint(9), -5),
    17: (varint(10), 5), 19: (struct.pack("<I", 11), 11), 21: (struct.pack("<Q", 1 << 40), 1 << 40),
    23: (struct.pack("<i", -12), -12), 25: (struct.pack("<q", -13), -13), 27: (b"\x01", True),
    29: (b"\x02ab", "ab"), 31: (varint(1), None),
}  # fmt: skip
"""By field of an attribute in et_def.proto: bytes of a value, and what it is; 31 is none of the fields."""
WIRE_TYPES = {3: 1, 5: 5, 19: 5, 21: 1, 23: 5, 25: 1, 29: 2}


@pytest.mark.parametrize("field", KINDS_OF_NUMBERS)
def test_attributes_hold_values_of_every_type(field: int) -> None:
    body, value = KINDS_OF_NUMBERS[field]
    told = message(10, message(1, b"comm_size") + varint(field << 3 | WIRE_TYPES.get(field, 0)) + body)
    other = message(10, message(1, b"of no use") + varint(9 << 3) + b"\x01")
    node = chakra_records.node_of(NODE.FromString(compute(3, 4) + other + told))
    assert node.attributes == {"is_cpu_op": False, "comm_size": value}


def test_lengths_of_records_have_seven_bits_a_byte() -> None:
    found, most = chakra_records._length, chakra_records._LONGEST_RECORD
    assert [found(window, 0) for window in (b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02z")] == [
        (0, 1), (127, 1), (128, 2), (300, 2)
    ]  # fmt: skip
    assert found(b"zz\xac\x02", 2) == (300, 4)
    assert found(b"\xff" * 9 + b"\x01", 0) == ((1 << 64) - 1, 10)
    assert found(b"z" + b"\xff" * 10, 1) == (most + 1, -1)
    assert [found(b"\xff" * count, 0) for count in (0, 1, 9)] == [(0, -1)] * 3
    assert found(b"", 0) == (0, -1)


@pytest.mark.parametrize("chunk", [1, 2, 7, 299, 300, 10_000])
def test_records_are_read_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(chakra_records, "_CHUNK", chunk)
    bodies = [b"abc", b"", b"x" * 300, b"yz"]
    raw = b"".join(varint(len(body)) + body for body in bodies)

    def read_bodies(text: bytes) -> list[bytes]:
        return list(chakra_records._bodies(Path("a.et"), io.BytesIO(text)))

    assert read_bodies(raw) == bodies
    for left in (1, 2):
        said = f"a.et, byte {len(raw) - 3}: the last record is cut off; expected a whole file"
        assert answered(read_bodies, raw[:-left]) == said
    most = 1 << 26
    said = f"a.et, byte {len(raw)}: a record of 67,108,865 bytes begins; expected records of a Chakra trace, each with"
    assert answered(read_bodies, raw + varint(most + 1)).startswith(said)
    assert "the last record is cut off" in answered(read_bodies, raw + varint(most))


@pytest.mark.parametrize(
    ("begin", "is_one"),
    [
        (b'{"workload_graph": []', True), (b'{"traceEvents": [], "workload_graph"', True),
        (b'"type": "COMM_NODE"', True),
        (b'{"traceEvents": [{"name": "COMM_NODE"', False), (b'{"schemaVersion": 1', False), (b"", False),
    ],
)  # fmt: skip
def test_a_text_in_json_is_known_by_its_beginning(tmp_path: Path, begin: bytes, is_one: bool) -> None:
    assert chakra_records.is_chakra_json(begin) is is_one
    path = tmp_path / "a.json"
    path.write_bytes(b" " * (65_536 - len(begin)) + begin)
    assert chakra_records.is_chakra_json(chakra_records.beginning(path)) is is_one
    path.write_bytes(b" " * (65_537 - len(begin)) + begin)
    assert len(chakra_records.beginning(path)) == 65_536
    assert chakra_records.beginning(tmp_path / "none.json") == b""


MOST_US = ((1 << 63) - 1) // 1000


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (chakra_node(1, COMPUTE, duration_us=(1 << 63) - 1), "field duration_micros: is 9223372036854775807; expected"),
        (chakra_node(1, COMPUTE, duration_us=1 << 63), "field duration_micros: is -9223372036854775808; expected"),
        (chakra_node(1, 8), "field type: is 8; expected 1 (metadata) to 7 (collective)"),
        (chakra_node(1, 2, duration_us=3), None),
        (chakra_node(1, 3, duration_us=3), None),
        (reduce(1, 5, comm_type=1), "field comm_type: is 1; expected one of 0 (all-reduce), 2 (all-gather), 5 (broadc"),
        (reduce(1, 0, comm_type=9), None),
        (reduce(1, 0, comm_type=8), "field comm_size: is 0; expected the bytes of this rank's input"),
        (reduce(1, -1), "field comm_size: is -1; expected a whole number from 0"),
        (reduce(1, 0, comm_size=True), "field comm_size: is True; expected a whole number from 0"),
        (chakra_node(1, SEND, attributes={"comm_dst": 1, "comm_size": 1}), None),
        (chakra_node(1, SEND, attributes={"comm_src": 1, "comm_size": 1}), "field comm_dst: is missing; expected a"),
        (chakra_node(1, RECEIVE, attributes={"comm_dst": 1, "comm_size": 1}), "field comm_src: is missing; expected a"),
        (chakra_node(1, SEND, attributes={"comm_dst": 1, "comm_size": 1, "comm_tag": -1}), "field comm_tag: is -1;"),
    ],
)  # fmt: skip
def test_a_node_is_taken_up_to_its_bounds(node: bytes, said: str | None) -> None:
    file = chakra.ChakraFile(Path("job.0.et"))
    told = answered(file.add, chakra_records.node_of(NODE.FromString(node)))
    assert told.startswith(f"job.0.et, node 1 ('node-1'), {said}" if said else "None")


def test_what_a_file_keeps_of_its_nodes() -> None:
    file = chakra.ChakraFile(Path("job.3.et"))
    groups = [json.dumps([{"pg_name": "0", "ranks": [], "group_size": size}]) for size in (4, 8)]
    nodes = [
        chakra_node(0, METADATA, name="process_group:init", inputs=groups[0], duration_us=5),
        chakra_node(1, METADATA, name="process_group:init", inputs=groups[1]),
        chakra_node(2, COMPUTE, duration_us=MOST_US, attributes={"is_cpu_op": True}),
        chakra_node(3, COMPUTE),
        reduce(4, 12, pg_name="0"),
        reduce(5, 13, comm_type=9, pg_name="a"),
        chakra_node(6, SEND, duration_us=9, attributes={"comm_dst": 1, "comm_size": 7, "comm_tag": 0}),
        chakra_node(7, RECEIVE, attributes={"comm_src": 1, "comm_size": 8, "comm_tag": 2}),
        chakra_node(8, COLLECTIVE, name="c10d::all", duration_us=2, attributes={"is_cpu_op": True}),
    ]
    for node in nodes:
        file.add(chakra_records.node_of(NODE.FromString(node)))
    assert (file.rank, file.group_size, file.groups) == (3, 4, {"0": ()})
    assert list(file.durations_ns) == [0, 0, 1000 * MOST_US, 0, 0, 0, 0, 0, 2000]
    assert list(file.is_cpu) == [0, 0, 1, 0, 0, 0, 0, 0, 1]
    kept = {node: (each.kind, each.input_bytes, each.group) for node, each in file.communications.items()}
    assert kept == {
        4: ("all-reduce", 12, ""), 5: ("barrier", 13, "a"), 6: ("send", 7, "3 to 1"), 7: ("send", 8, "1 to 3 (tag 2)"),
    }  # fmt: skip
    assert sorted(file.notes.values()) == [1, 1]
    nameless = chakra.ChakraFile(Path("job.et"))
    said = answered(nameless.add, chakra_records.node_of(NODE.FromString(nodes[6])))
    assert said == "job.et: sends or receives; expected its rank in its name, as in job.0.et"


@pytest.mark.parametrize(("count", "shown"), [(2, 2), (6, 6), (9, 6)])
def test_a_circle_is_shown_by_its_first_nodes(tmp_path: Path, count: int, shown: int) -> None:
    nodes = [compute(10 + n, 1, 10 + (n + 1) % count) for n in range(count)]
    said = answered(read, tmp_path, [reduce(0, 8), *nodes, compute(99, 1, 10)], num_ranks=2)
    places = said.partition("(")[2].partition(")")[0].split(" after ")
    assert len(places) == shown + 1
    steps = [int(place) - 10 for place in places]
    assert all((before + 1) % count == after for before, after in pairwise(steps[:shown]))
    assert steps[0] == steps[-1]
    assert said.endswith("; expected no cycle")
