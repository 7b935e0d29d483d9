"""Traces of jobs drawn by a seed, in every form that is read, become what they became."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra_files import COLLECTIVE, COMPUTE, METADATA, RECEIVE, SEND, chakra_node, write_chakra
from command_line import run
from google.protobuf import json_format
from kept_numbers import answered, assert_kept, digest, short
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from ddlsched.training.recorded import reading
from ddlsched.training.recorded.alone import Card, summary, timed_alone
from ddlsched.training.recorded.chakra import rank_of_name
from ddlsched.training.recorded.chakra_records import NODE
from ddlsched.training.recorded.collective_names import BYTES_OF, GLOO, NCCL, groups_of_text, tensor_bytes
from ddlsched.training.recorded.rank_steps import RankCommunication, WallTime
from ddlsched.training.recorded.reading import read_iteration
from ddlsched.training.recorded.recorded_chart import recorded_chart
from ddlsched.training.recorded.recordings import recording_text

CARDS = Card(gbps=10.0), Card(gbps=80.0, latency_us=50.0)
GROUPS = {"0": [], "left": [0, 1], "right": [2, 3]}


def told(paths: list[Path], **more: Any) -> str:
    """Return the length of what is read, alone on a network, and a digest of all that is told of it."""
    made = read_iteration(paths, **more)
    parts = made.classes, made.steps, made.nodes, made.moments_ns, made.wall_ns, made.unrecorded_ns, made.last
    texts = [json.dumps(summary(made, card)) for card in CARDS]
    alone = [timed_alone(made.dag, made.num_ranks, card) for card in CARDS]
    critical = [each.critical for each in alone]
    numbers = short(*(each.iteration_ns for each in alone))
    return f"{len(made.dag.tasks)} {numbers} {digest([*parts, *texts, critical, *made.dag.tasks, made.dag.groups])}"


def asked(paths: list[Path], **more: Any) -> str:
    """The same, or why the traces are refused, without their places."""
    return answered(told, paths, **more).replace(str(paths[0].parent), "")


def chakra_nodes(rank: int, seed: int) -> Iterator[bytes]:
    """Computation of a rank's own length between communication that all ranks of a group have in common."""
    rng, own = np.random.default_rng(seed), np.random.default_rng((seed, rank % 2))
    groups = json.dumps([{"pg_name": name, "ranks": ranks} for name, ranks in GROUPS.items()])
    yield chakra_node(90, METADATA, name="process_group:init", inputs=groups)
    last, sent = 0, -1
    yield chakra_node(0, COMPUTE, duration_us=100, attributes={"is_cpu_op": False})
    for node in range(1, 24):
        after = [last] if rng.random() < 0.7 else sorted({last, max(last - 1, 0)})
        way = int(rng.integers(8))
        size, length, on_host = int(rng.integers(1, 9)) << 18, int(own.integers(1, 400)), bool(rng.random() < 0.3)
        waits = bool(rng.random() < 0.5)
        if way < 4:
            behind = [sent] if waits and sent > 0 else []
            given: dict[str, Any] = {"attributes": {"is_cpu_op": on_host}, "duration_us": length}
            yield chakra_node(node, COMPUTE, after=sorted({*after, *behind}), control=[0] * (way == 3), **given)
            last = node
        elif way < 7:
            group = ("0", "left" if rank < 2 else "right", "0")[way - 4]
            kind = int(rng.choice([0, 2, 5, 6, 7]))
            attributes = {"is_cpu_op": False, "comm_type": kind, "comm_size": size, "pg_name": group}
            yield chakra_node(node, COLLECTIVE, after=after, attributes=attributes)
            sent = node
        elif rank % 2 == 0:
            attributes = {"comm_dst": rank + 1, "comm_size": size, "comm_tag": node % 2}
            yield chakra_node(node, SEND, after=after, attributes=attributes)
        else:
            attributes = {"comm_src": rank - 1, "comm_size": size, "comm_tag": node % 2}
            yield chakra_node(node, RECEIVE, after=after, attributes=attributes)
            sent = node


@pytest.mark.long
def test_chakra_traces_become_what_they_became(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for seed in range(8):
        paths = [write_chakra(tmp_path / f"{seed}.{rank}.et", chakra_nodes(rank, seed)) for rank in range(4)]
        found[f"{seed}"] = asked(paths)
        found[f"{seed} twice as many"] = asked(paths, num_ranks=8)
        if seed < 3:
            found[f"{seed} found"] = digest(
                [answered(reading.found, path).replace(str(tmp_path), "") for path in paths]
            )
            found[f"{seed} one for all"] = asked(paths[:1], num_ranks=16)
            found[f"{seed} one is missing"] = asked(paths[:3])
            found[f"{seed} other order"] = asked([*paths[2:], *paths[:2]])
    names = ("a.3.et", "a.12.json.gz", "a.et", "3.et", "a.3.et.gz", "a.b.json", "a.-1.et")
    found["names"] = str([rank_of_name(Path(name)) for name in names])
    assert_kept("chakra", found)


def test_damaged_traces_are_told_as_they_were(tmp_path: Path) -> None:
    whole = write_chakra(tmp_path / "a.0.et", chakra_nodes(0, 1)).read_bytes()
    broken = tmp_path / "b.0.et"
    found = {}
    for place in (0, 1, 3, 6, 7, 9, 40, 200, len(whole) - 1):
        answers = []
        for body in (whole[:place], whole[:place] + b"\xff" + whole[place + 1 :], whole[:place] + whole[place + 1 :]):
            broken.write_bytes(body)
            # What protobuf says of a record differs by its version.
            answers.append(re.sub(r"\(.*\)", "", answered(told, [broken], num_ranks=4)).replace(str(tmp_path), ""))
        found[f"{place}"] = digest(answers)
    assert_kept("damaged-traces", found)


def test_traces_in_json_are_those_of_protobuf(tmp_path: Path) -> None:
    for seed in (1, 3):
        nodes = list(chakra_nodes(0, seed))
        packed = write_chakra(tmp_path / "a.0.et", nodes)
        texts = [json_format.MessageToJson(NODE.FromString(node)) for node in nodes]
        plain = tmp_path / "b.0.json"
        plain.write_text("\n".join(['{"version": "0.0.4"}', *texts, ""]))
        assert reading.found(plain) == reading.found(packed)
        assert asked([plain]).replace("b.0.json", "a.0.et") == asked([packed])


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def gloo_step(number: int, begin_us: float, seed: int, slow: float) -> Iterator[dict[str, Any]]:
    """A step on the host: forward, backward whose parts send buckets, calls that are waited for, an optimiser."""
    rng = np.random.default_rng(seed)
    yield event("user_annotation", f"ProfilerStep#{number}", begin_us, 4000 * slow)
    at = begin_us + 10
    for part in range(12):
        length = float(rng.integers(20, 300)) * slow
        in_backward, calls = part > 4, rng.random() < 0.5
        name = "autograd::engine::evaluate_function: X" if in_backward else "aten::mm"
        yield event("cpu_op", name, at, length)
        if calls:
            call = str(rng.choice([each for each in GLOO if GLOO[each][0] not in ("send", "receive")]))
            kind, work, place = GLOO[call]
            shape, of = [int(rng.integers(1, 5000)), 3], str(rng.choice(["float", "c10::Half", "long int"]))
            dims: list[Any] = [[], []]
            types = ["", ""]
            dims[place], types[place] = (shape, of) if part % 3 else ([], "TensorList")
            concrete = ["", str(bool(part % 2))]
            arguments = {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
            yield event("cpu_op", call, at + length / 2, 4, **arguments)
            begin, end = at + length / 2 + 5, at + length * float(rng.choice([0.9, 1.5, 3.0]))
            more = {"Input Dims": [shape], "Input type": [of]} if kind != "barrier" else {}
            yield event("user_annotation", work, begin, max(end - begin, 1), 2, **more)
        at += length + float(rng.choice([0, 5, 80]))
    yield event("user_annotation", "Optimizer.step#SGD.step", at, 90)


def nccl_step(number: int, begin_us: float, seed: int, slow: float) -> Iterator[dict[str, Any]]:
    """A step on a GPU, whose kernels wait for collectives of some groups."""
    rng = np.random.default_rng(seed)
    yield event("user_annotation", f"ProfilerStep#{number}", begin_us, 3000)
    host, gpu = begin_us + 5, begin_us + 30.0
    for part in range(14):
        key, length = number * 1000 + part, float(rng.integers(20, 260)) * slow
        yield event("cuda_runtime", "cudaLaunchKernel", host, 1, correlation=key)
        yield event("kernel", "gemm", gpu, length, 7, correlation=key)
        if part > 6:
            yield event("cpu_op", "autograd::engine::evaluate_function: X", host - 1, 20)
        gpu += length
        if rng.random() < 0.6:
            name = str(rng.choice([each for each, kind in NCCL.items() if kind not in ("send", "receive")]))
            group, ranks = (("0", "[0, 1]"), ("7", "[0, 1]"))[int(rng.integers(2))]
            common = {
                "External id": key, "Collective name": name, "In msg nelems": int(rng.integers(1, 10**6)),
                "dtype": str(rng.choice(["Half", "Float", "BFloat16", "Byte"])), "Process Group Name": group,
                "Process Group Ranks": ranks,
            }  # fmt: skip
            yield event("cpu_op", "record_param_comms", host + 3, 2, **common)
            yield event("kernel", "ncclDevKernel_X(args)", gpu, length / 2, 40, **common)
            if rng.random() < 0.5:
                waits = common | {"Collective name": "wait", "External id": key + 500}
                yield event("cpu_op", "record_param_comms", host + 6, 1, **waits)
                gpu += length / 2 + 15
        host += float(rng.integers(10, 60))
    yield event("user_annotation", "Optimizer.step#Adam.step", host, 40)


@pytest.mark.long
def test_kineto_traces_become_what_they_became(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for seed in range(10):
        of_a_step, paths = (gloo_step, nccl_step)[seed % 2], []
        for rank in range(2):
            starts = enumerate((100.0, 6000.25, 12000.5))
            events = [each for n, at in starts for each in of_a_step(n + 3, at, seed, 1 + 0.1 * n * rank)]
            if seed in (4, 5):
                events = [each for each in events if "ProfilerStep" not in each["name"]]
            groups = [{"pg_name": "0", "ranks": [], "pg_size": 2}]
            info = {"rank": rank, "world_size": 2, "pg_config": groups}
            paths.append(tmp_path / f"{seed}.{rank}.json")
            paths[-1].write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}))
        found[f"{seed}"] = asked(paths)
        found[f"{seed} one"] = asked(paths[:1])
        found[f"{seed} found"] = digest([answered(reading.found, path).replace(str(tmp_path), "") for path in paths])
    assert_kept("kineto", found)


def recorded_step(rng: np.random.Generator, rank: int, begin_ns: int, forms: np.random.Generator) -> Any:
    """A step whose calls cost something; how it communicates is the same on each rank."""
    length = 100_000 + int(rng.integers(0, 9000))
    stretch = WallTime(begin_ns, begin_ns + length, call_ns=int(forms.choice([0, 700])))
    stretch.phase("forward", begin_ns)
    stretch.phase("backward", begin_ns + 40_000)
    for place in range(6):
        kind = str(forms.choice(["all-reduce", "all-gather", "reduce-scatter", "broadcast", "barrier", "all-to-all"]))
        size, group = int(forms.choice([4, 16384, 16388, 900_000])), str(forms.choice(["", "a"]))
        start = begin_ns + 15_000 * place + int(rng.integers(0, 4000))
        end = begin_ns + 15_000 * place + 9000 + int(rng.integers(0, 500))
        waited = [None, (end - 2000, end), (end - 3000, end + 100), (end, end)][int(forms.integers(4))]
        work = (start + 20, end) if forms.random() < 0.9 else None
        stretch.communicate(RankCommunication(kind, size, group), start, waited, work)
    stretch.phase("optimizer", begin_ns + length - 4000)
    return stretch.step()


@pytest.mark.long
def test_recordings_become_what_they_became(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    for seed in range(8):
        paths = []
        for rank in range(3):
            rng, forms = np.random.default_rng((seed, rank)), np.random.default_rng(seed)
            offset = rank * (10**9 if seed == 3 else 100)  # clocks of several hosts
            state = forms.bit_generator.state
            steps = {}
            for number in range(3):
                forms.bit_generator.state = state
                steps[number] = recorded_step(rng, rank, 5000 + 10**6 * number + offset, forms)
            paths.append(tmp_path / f"{seed}.{rank}.recording.json")
            before_ns = [80_000 + 100 * rank] * (seed % 3)
            paths[-1].write_text(recording_text(rank, 3, {"a": (0, 1, 2)}, steps, before_ns))
        found[f"{seed}"] = asked(paths)
        found[f"{seed} one"] = asked(paths[:1])
    assert_kept("recordings", found)
    done = run("import-training", *map(str, paths), "--out", str(tmp_path / "job.json"))
    written = (tmp_path / "job.json").read_text()
    said = [text.replace(str(tmp_path), "") for text in (done.stdout, done.stderr, written)]
    assert_kept(
        "import-training", {"told": digest(said[:2]), "written": digest(said[2:]), "ended": str(done.exit_code)}
    )


@pytest.mark.long
def test_charts_of_recorded_steps_are_what_they_were(tmp_path: Path) -> None:
    """What has a place in the picture, without fonts."""
    found = {}
    for seed in (0, 6):
        paths = [write_chakra(tmp_path / f"{seed}.{rank}.et", chakra_nodes(rank, seed)) for rank in range(4)]
        made = read_iteration(paths)
        step = recorded_step(np.random.default_rng(seed), 0, 0, np.random.default_rng(seed))
        figure = recorded_chart(timed_alone(made.dag, 4, CARDS[seed // 6]), step)
        bars = [
            (short(*bar.get_bbox().bounds), to_hex(bar.get_facecolor()))
            for bar in figure.findobj(Rectangle)
            if bar.axes
        ]
        lines = [line for axes in figure.axes for line in axes.lines]
        arrows = [
            (short(*np.ravel(line.get_xydata())), to_hex(line.get_color()), line.get_linewidth()) for line in lines
        ]
        texts = [(text.get_text(), text.get_position()) for axes in figure.axes for text in axes.texts]
        ends = [(axes.get_xlabel(), axes.get_title(loc="left"), short(*axes.get_ylim())) for axes in figure.axes]
        ticks = [tick.get_text() for axes in figure.axes for tick in axes.get_yticklabels()]
        found[f"{seed}"] = f"{len(bars)} {len(arrows)} {digest([*bars, *arrows, *texts, *ends, *ticks])}"
    assert_kept("recorded-charts", found)


def test_sizes_and_groups_are_read_as_they_were() -> None:
    shapes: tuple[Any, ...] = ([[2, 3], [4]], [[2, 3]], [[]], [], None, [["2"]], [[0]], [[2], [3], [4]])
    types: tuple[Any, ...] = (["float", "half"], ["Long", "byte"], ["thing"], [], None)
    sizes = [[tensor_bytes(shape, of) for of in types] for shape in shapes]
    found = {"sizes": digest(sizes), "types": digest(BYTES_OF.items())}
    for number, text in enumerate((
        '[{"pg_name": "0", "ranks": [], "group_size": 4}]', '[{"pg_name": "1", "ranks": [1, 0], "pg_size": 2}]',
        '[{"pg_name": "1", "pg_desc": "default_pg", "ranks": [], "pg_size": 8}]', '[{"pg_name": "0", "pg_size": 0}]',
        "5", "[5]",
        '[{"pg_name": "0", "ranks": [0, 0]}]', '[{"pg_name": "0", "ranks": [-1]}]',
        '[{"pg_name": "0", "ranks": [1048577]}]',
    )):  # fmt: skip
        found[f"groups {number}"] = answered(groups_of_text, "here", text)
    assert_kept("collective-names", found)
