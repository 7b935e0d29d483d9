"""Each check of the conformance classes finds the fault it looks for: runs and answers are made up, so it is cheap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

from ddlsched.network.collectives import Phase, Rank
from ddlsched.network.topology import Link
from ddlsched.testing import admission_conformance, conformance_runs, network_conformance, policy_conformance
from ddlsched.workload.job import Workload

PROMISED = "what the class promises is so"
RECORDED = "a run that is recorded, in which nothing is skipped, is the same"


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A policy that promises nothing."""


@dataclass(frozen=True, kw_only=True)
class Promising:
    """A policy that promises something."""

    refusal_lasts = True


@dataclass(frozen=True, kw_only=True)
class InPythonOnly:
    """A policy that has no compiled form."""

    compiled = False


def failure(check: Callable[[], Any]) -> str:
    """Return the first line that a check says of the fault it finds; nothing if it finds none."""
    try:
        check()
    except AssertionError as found:
        return str(found).partition("\n")[0] or "assert"
    return ""


def checked(kind: type, check: str, made: Any) -> str:
    """Return what a check of a conformance class says of a plug-in."""
    return failure(getattr(type("Checks", (kind,), {"make": lambda self: made})(), check))


class Runs:
    """Stands for a simulator: each run finishes at 1 ns and at 2 ns, but those that are told to differ."""

    def __init__(self, odd: Callable[[dict[str, Any]], bool], finish: int = 3) -> None:
        self.odd, self.finish = odd, finish
        self.asked: list[dict[str, Any]] = []

    def __call__(self, *given: Any, **named: Any) -> Any:
        of_this = [each for each in self.asked if each["seed"] == named.get("seed", given[0])]
        run = {"number": len(of_this), "seed": named.get("seed", given[0])} | named
        self.asked.append(run)
        return [1, self.finish if self.odd(run) else 2]


def _ran(monkeypatch: pytest.MonkeyPatch, name: str, odd: Callable[[dict[str, Any]], bool], finish: int = 3) -> Runs:
    runs = Runs(odd, finish)
    monkeypatch.setattr(conformance_runs, name, runs)
    monkeypatch.setattr(conformance_runs, "finishes_of", lambda result: result)
    _without_workloads(monkeypatch, conformance_runs)
    return runs


def _without_workloads(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """Let no time go into workloads that no run looks at."""
    for name in ("example_workload", "long_workload", "example_elastic_workload"):
        monkeypatch.setattr(module, name, lambda seed: None, raising=False)


def _last(run: dict[str, Any]) -> bool:
    return bool(run["seed"] == 3)


@pytest.mark.parametrize(
    ("door", "odd", "finish", "said"),
    [
        ("order", lambda run: False, 3, ""),
        ("order", lambda run: _last(run), 0, "every job finishes"),
        ("placement", lambda run: _last(run) and run["number"] == 1, 3, "the same seed gives the same run"),
        ("placement", lambda run: _last(run) and "timeline" in run, 3, "recording changed it"),
        ("order", lambda run: _last(run) and hasattr(run["order"], "compiled"), 3, "both forms agree"),
        ("communication", lambda run: hasattr(run["communication"], "compiled"), 3, "both forms agree"),
        ("contention", lambda run: hasattr(run["contention"], "compiled"), 3, "both forms agree"),
    ],
)  # fmt: skip
def test_runs_of_a_seed_that_differ_are_found(
    monkeypatch: pytest.MonkeyPatch, door: str, odd: Callable[[dict[str, Any]], bool], finish: int, said: str
) -> None:
    _ran(monkeypatch, "run_example", odd, finish)
    assert failure(lambda: conformance_runs.assert_runs_alike(door, Plain())) == said


@pytest.mark.parametrize(
    ("door", "plugin", "runs_of_a_seed"),
    [("order", Plain(), 4), ("placement", Plain(), 3), ("order", InPythonOnly(), 3), ("contention", Plain(), 4)],
)
def test_the_python_form_runs_where_there_is_a_compiled_one(
    monkeypatch: pytest.MonkeyPatch, door: str, plugin: Any, runs_of_a_seed: int
) -> None:
    runs = _ran(monkeypatch, "run_example", lambda run: False)
    conformance_runs.assert_runs_alike(door, plugin)
    assert [run["seed"] for run in runs.asked] == [seed for seed in range(4) for _ in range(runs_of_a_seed)]
    assert [run["timeline"] for run in runs.asked if "timeline" in run] == [True] * 4


@pytest.mark.parametrize(
    ("plugin", "odd", "said", "number"),
    [
        (Plain(), lambda run: True, "", 0),
        (Promising(), lambda run: False, "", 32),
        (Promising(), lambda run: run["seed"] == 7 and run["number"] == 3, f"{PROMISED}: refusal_lasts", 32),
    ],
)  # fmt: skip
def test_a_promise_that_changes_a_run_is_found(
    monkeypatch: pytest.MonkeyPatch, plugin: Any, odd: Callable[[dict[str, Any]], bool], said: str, number: int
) -> None:
    """Of eight seeds, two workloads each, with what the class promises and without."""
    runs = _ran(monkeypatch, "simulate", odd)
    assert failure(lambda: conformance_runs.assert_promises_change_nothing("communication", plugin)) == said
    assert len(runs.asked) == number
    assert [run["communication"].refusal_lasts for run in runs.asked] == [True, False] * (number // 2)


@pytest.mark.parametrize(
    ("door", "odd", "finish", "said"),
    [
        ("order", lambda run: False, 3, ""),
        ("order", lambda run: _last(run) and run["number"] == 5, 0, "every job finishes"),
        ("order", lambda run: _last(run) and run["number"] == 6, 3, "the same seed gives the same run"),
        ("order", lambda run: _last(run) and run["number"] == 7, 3, PROMISED),
        ("order", lambda run: _last(run) and run["number"] == 8, 3, "both forms agree"),
        ("order", lambda run: run["number"] == 9, 3, RECORDED),
        ("placement", lambda run: run["number"] == 3, 3, RECORDED),
    ],
)  # fmt: skip
def test_runs_with_stops_that_differ_are_found(
    monkeypatch: pytest.MonkeyPatch, door: str, odd: Callable[[dict[str, Any]], bool], finish: int, said: str
) -> None:
    """Each workload runs five times under an order, four times under a placement, which is not compiled."""
    runs = _ran(monkeypatch, "simulate", odd, finish)
    monkeypatch.setattr(conformance_runs, "_assert_one_job_a_gpu", lambda result: None)
    assert failure(lambda: conformance_runs.assert_stops_and_moves_alike(door, Plain())) == said
    assert {run["disturbances"].restart_s for run in runs.asked} == {0.05}


@pytest.mark.parametrize(
    ("most", "restarts", "departures", "said"),
    [
        (1, [0, 2, 1], 3, ""), (0, [0], 0, ""), (2, [0], 0, "a GPU of an exclusive cluster has one job at a time"),
        (1, [1, 1], 3, "a job leaves its GPUs before its end by a stop or a move only"),
    ],
)  # fmt: skip
def test_two_jobs_on_a_gpu_and_departures_without_a_stop_are_found(
    most: int, restarts: list[int], departures: int, said: str
) -> None:
    finished = SimpleNamespace(departures=[None] * departures)
    result: Any = SimpleNamespace(most_jobs_on_a_gpu=most, jobs={"restarts": np.array(restarts)}, finished=finished)
    assert failure(lambda: conformance_runs._assert_one_job_a_gpu(result)) == said


def test_a_plugin_is_frozen_and_its_parameters_have_names() -> None:
    @dataclass(kw_only=True)
    class Loose:
        share: float = 0.0

    @dataclass(frozen=True)
    class ByPlace:
        share: float = 0.0

    check = "test_is_a_frozen_dataclass"
    assert checked(conformance_runs.Conformance, check, Plain()) == ""
    assert checked(conformance_runs.Conformance, check, object()).startswith("a plug-in is a dataclass")
    assert checked(conformance_runs.Conformance, check, Loose()).startswith("a plug-in is frozen")
    assert checked(conformance_runs.Conformance, check, ByPlace()).startswith("parameters are keyword-only")
    with pytest.raises(NotImplementedError, match="give the conformance class a make"):
        conformance_runs.Conformance().make()


# ---- Contention


ONE = 1.0 / 1.25e9
"""Seconds a byte on the card of the example network."""


def _model(conserves: bool = True, per_byte_s: float = ONE, **others: Any) -> Any:
    model = SimpleNamespace(alone_per_byte_s=per_byte_s, conserves_bytes=conserves, **others)
    model.bound_to = lambda network: model
    return model


def _in_equal_shares(flows: Sequence[Any]) -> list[float]:
    """Return an equal share of the busiest link for each."""
    on = [sum(link in flow.links for flow in flows) for link in range(6)]
    return [1.25e9 / max(on[link] for link in flow.links) for flow in flows]


@pytest.mark.parametrize(
    ("check", "rates", "model", "is_right"),
    [
        ("alone", lambda flows: [1.25e9], _model(), True),
        ("alone", lambda flows: [1.25e9 * (1 + 1e-9)], _model(), False),
        ("alone", lambda flows: [1.25e9 * (1 - 1e-9)], _model(), False),
        ("within", _in_equal_shares, _model(), True),
        ("within", lambda flows: [1.25e9] * len(flows), _model(), False),
        ("within", lambda flows: [1.25e9] * len(flows), _model(conserves=False), True),
        ("within", lambda flows: [float("inf")] * len(flows), _model(conserves=False), False),
        ("within", lambda flows: [-1.0] * len(flows), _model(), False),
        ("within", lambda flows: [0.0] * len(flows), _model(), False),
        ("within", lambda flows: [0.0] * len(flows), _model(level=None), True),
        ("within", lambda flows: [1.0] * (len(flows) + 1), _model(), False),
        ("order", _in_equal_shares, _model(), True),
        ("order", lambda flows: [float(place + 1) for place in range(len(flows))], _model(), False),
        ("order", lambda flows: [1.0 + 1e-9 * place for place in range(len(flows))], _model(), False),
        ("order", lambda flows: [1.0 + 1e-15 * place for place in range(len(flows))], _model(), True),
    ],
)
def test_rates_that_no_network_has_are_found(
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    rates: Callable[[Sequence[Any]], list[float]],
    model: Any,
    is_right: bool,
) -> None:
    checks = {
        "alone": "test_a_lone_transfer_has_its_stated_rate",
        "within": "test_rates_are_finite_and_within_the_links",
        "order": "test_does_not_depend_on_the_order_of_transfers",
    }
    monkeypatch.setattr(network_conformance, "rates_of", lambda model, flows, waiting, links: rates(flows))
    assert (checked(network_conformance.ContentionConformance, checks[check], model) == "") is is_right


# ---- Topologies


@dataclass(frozen=True, kw_only=True)
class Rails:
    """Servers that have a cable to each of two switches, and a route that may be wrong."""

    wrong: str = ""

    def graph(self, num_servers: int) -> Any:
        """Return the cables: from each server to the switch, and some between servers."""
        graph = nx.Graph()
        graph.add_nodes_from(range(num_servers))
        for server in range(num_servers):
            graph.add_edge(server, "switch", bandwidth_bytes_per_s=1.25e9, latency_s=0.0)
        for one, other in [(0, 1), (1, 2), (1, num_servers - 1)] if num_servers > 2 else []:
            graph.add_edge(one, other, bandwidth_bytes_per_s=1.25e9, latency_s=0.0)
        return graph

    def route(self, graph: Any, source: int, target: int) -> list[Any]:
        """Return the way over the switch, or a wrong one."""
        last = max(node for node in graph if isinstance(node, int))
        if self.wrong and (source, target) == (last, 2) and last > 2:
            return {
                "begin": ["switch", target], "end": [source, "switch"], "cable": [source, "air", target],
                "detour": [source, "switch", 1, "switch", target], "at first": [source, 1, "switch", target],
                "at last": [source, "switch", 1, target],
            }[self.wrong]  # fmt: skip
        return [source, "switch", target]


@pytest.mark.parametrize("wrong", ["", "begin", "end", "cable", "detour", "at first", "at last"])
def test_routes_beside_the_cables_are_found(wrong: str) -> None:
    said = checked(network_conformance.TopologyConformance, "test_routes_follow_cables", Rails(wrong=wrong))
    assert (said == "") is (not wrong)


class Wired:
    """Stands for the network of a topology."""

    def __init__(self, carries: float, paths: Sequence[str] = ("a", "b"), cables: int = 1, lone_links: int = 0) -> None:
        self.carries, self.of, self.cables, self.lone_links = carries, paths, cables, lone_links

    def __call__(self, topology: Any, num_servers: int) -> Wired:
        speed = 1.25e9 * self.carries
        link = Link(name="x", bandwidth_bytes_per_s=speed, relative_bandwidth=self.carries)
        self.links = [link] * (num_servers * self.cables)
        return self

    def ring(self, servers: Sequence[int]) -> Any:
        """Return the ring's links: those of its servers."""
        return SimpleNamespace(links=tuple(servers) if len(servers) > 1 else tuple(range(self.lone_links)))

    def paths(self, source: int, target: int) -> Sequence[str]:
        """Return ways from one to another."""
        return self.of

    def place_of_route(self, source: int, target: int) -> int:
        """Return the first way's place, of the last pair the second's."""
        return 0 if (source, target) != (15, 14) else 1

    def route(self, source: int, target: int) -> str:
        """Return the first way."""
        return "a"


@pytest.mark.parametrize(
    ("check", "wired", "is_right"),
    [
        ("test_makes_a_network", Wired(1.0), True),
        ("test_makes_a_network", Wired(1.0, cables=0), False),
        ("test_makes_a_network", Wired(1.0, lone_links=1), False),
        ("test_offers_its_route_among_its_paths", Wired(1.0, ("a", "a")), True),
        ("test_offers_its_route_among_its_paths", Wired(1.0), False),
    ],
)
def test_networks_that_no_topology_may_make_are_found(
    monkeypatch: pytest.MonkeyPatch, check: str, wired: Wired, is_right: bool
) -> None:
    monkeypatch.setattr(network_conformance, "Network", wired)
    assert (checked(network_conformance.TopologyConformance, check, None) == "") is is_right


@pytest.mark.parametrize(("too_much", "carries", "is_right"), [(1.0, 1.0, True), (1.01, 1.0, False), (1.0, 0.9, False)])
def test_transfers_that_are_faster_than_their_links_are_found(
    monkeypatch: pytest.MonkeyPatch, too_much: float, carries: float, is_right: bool
) -> None:
    """Each of n transfers on the busiest link has its nth part of what a network card carries alone."""

    def rates(model: Any, flows: Sequence[Any], waiting: Any, links: Any) -> list[float]:
        most = max(sum(link in flow.links for flow in flows) for link in range(16))
        return [too_much / model.alone_per_byte_s / most] * len(flows)

    monkeypatch.setattr(network_conformance, "rates_of", rates)
    monkeypatch.setattr(network_conformance, "Network", Wired(carries))
    check = "test_no_transfer_is_faster_than_its_links"
    assert (checked(network_conformance.TopologyConformance, check, None) == "") is is_right


# ---- Communication, and paths


@pytest.mark.parametrize(
    ("forms", "is_right"),
    [(["admit"], True), (["transfer_key"], True), (["select"], True), ([], False), (["admit", "select"], False)],
)
def test_a_communication_policy_has_one_form(forms: list[str], is_right: bool) -> None:
    policy = SimpleNamespace(**dict.fromkeys(forms, lambda *_: True))
    said = checked(network_conformance.CommunicationConformance, "test_is_preemptive_or_not", policy)
    assert (said == "") is is_right


@pytest.mark.parametrize(
    ("policy", "is_right"),
    [
        (SimpleNamespace(admit=lambda transfer, network: not network.active and len(network.waiting) == 1), True),
        (SimpleNamespace(admit=lambda transfer, network: transfer.job.num_gpus == 8), True),
        (SimpleNamespace(admit=lambda transfer, network: False), False),
        (SimpleNamespace(select=lambda waiting, network: waiting), True),
        (SimpleNamespace(select=lambda waiting, network: []), False),
        (SimpleNamespace(transfer_key=lambda transfer, network: 0), True),
    ],
)
def test_a_lone_transfer_that_waits_is_found(policy: Any, is_right: bool) -> None:
    said = checked(network_conformance.CommunicationConformance, "test_lets_a_lone_transfer_run", policy)
    assert (said == "") is is_right


@pytest.mark.long
def test_one_that_is_refused_is_asked_again_beside_what_changes_later() -> None:
    """While the other has all, two fifths or nothing left; beside one elsewhere; later; and behind another."""
    asked: list[tuple[Any, ...]] = []

    @dataclass(frozen=True, kw_only=True)
    class Refusing:
        refusal_lasts = True

        def admit(self, transfer: Any, network: Any) -> bool:
            met = [other.bytes_left for other in network.met_by(transfer)]
            asked.append((network.now_s, met, len(network.active), len(network.waiting)))
            return not met

    assert checked(network_conformance.CommunicationConformance, "test_refusals_last", Refusing()) == ""
    assert len(asked) == 60 * (4 + 1 + 3 * 2 * 4 * 2)
    for place in range(0, len(asked), 53):
        alone, (began_s, (left,), *_), later = asked[place : place + 4], asked[place + 4], asked[place + 5 : place + 53]
        assert alone == [(0.5, [], 0, 0), (7.0, [], 0, 0), (0.5, [], 1, 0), (7.0, [], 1, 0)]
        assert began_s in (0.0, 0.25, 3.5)
        assert [(round(now_s - began_s, 9), met, active, waiting) for now_s, met, active, waiting in later] == [
            (seconds, [pytest.approx(left * share)], active, waiting)
            for share in (1.0, 0.4, 0.0) for active in (1, 2) for seconds in (0.0, 0.3, 1.0, 7.7) for waiting in (1, 2)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "is_right"),
    [
        (lambda transfer, network: transfer.bytes_left, True),
        (lambda transfer, network: 7, True),
        (lambda transfer, network: -transfer.bytes_left, False),
        (lambda transfer, network: transfer.bytes_left if network.active else -transfer.bytes_left, False),
        (lambda transfer, network: -transfer.bytes_left if network.active else transfer.bytes_left, False),
        (lambda transfer, network: max(transfer.bytes_left, 1e6) + 2e6 * (transfer.bytes_left == 0), False),
    ],
)
def test_keys_that_rise_while_sending_are_found(key: Callable[..., Any], is_right: bool) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Keyed:
        key_falls_while_sending = True

        def transfer_key(self, transfer: Any, network: Any) -> Any:
            return key(transfer, network)

    said = checked(network_conformance.CommunicationConformance, "test_keys_fall_while_sending", Keyed())
    assert said == ("" if is_right else "key_falls_while_sending: it never rises")


@pytest.mark.parametrize(
    ("odd", "finish", "said"),
    [
        (lambda run: False, 3, ""),
        (lambda run: _last(run) and run["number"] == 0, 0, "every job finishes"),
        (lambda run: _last(run) and run["number"] == 1, 3, "the same seed gives the same run"),
        (lambda run: _last(run) and run["timeline"], 3, "recording changed it"),
    ],
)
def test_runs_of_paths_that_differ_are_found(
    monkeypatch: pytest.MonkeyPatch, odd: Callable[[dict[str, Any]], bool], finish: int, said: str
) -> None:
    runs = Runs(odd, finish)
    monkeypatch.setattr(network_conformance, "simulate", runs)
    monkeypatch.setattr(network_conformance, "finishes_of", lambda result: result)
    _without_workloads(monkeypatch, network_conformance)
    assert checked(network_conformance.PathConformance, "test_runs_alike", Plain()) == said
    if not said:
        assert [run["timeline"] for run in runs.asked] == [False, False, True] * 4


@pytest.mark.parametrize(
    ("chosen", "compiled", "number", "said"),
    [
        ("transfer", None, 8, "both forms agree"),
        ("transfer", True, 8, "both forms agree"),
        ("transfer", False, 0, ""),
        ("placement", None, 0, ""),
    ],
)
def test_paths_that_differ_in_python_are_found(
    monkeypatch: pytest.MonkeyPatch, chosen: str, compiled: bool | None, number: int, said: str
) -> None:
    made = type("Made", (Plain,), {"chosen": chosen} | ({} if compiled is None else {"compiled": compiled}))
    policy = dataclass(frozen=True, kw_only=True)(made)()
    runs = Runs(lambda run: _last(run) and getattr(run["path"], "compiled", None) is False if said else False)
    monkeypatch.setattr(network_conformance, "simulate", runs)
    monkeypatch.setattr(network_conformance, "finishes_of", lambda result: result)
    _without_workloads(monkeypatch, network_conformance)
    assert checked(network_conformance.PathConformance, "test_compiled_it_decides_as_in_python", policy) == said
    assert len(runs.asked) == number


def test_paths_are_asked_on_empty_links_beside_jobs_and_beside_flows() -> None:
    asked: list[tuple[Any, ...]] = []

    def path(flow: Any, loads: Any) -> int:
        on = [(loads.jobs_on(link), loads.flows_on(link)) for link in range(4)]
        asked.append((flow.source, flow.target, flow.route, flow.paths, on))
        return 0

    kind = network_conformance.PathConformance
    assert checked(kind, "test_answers_a_path", SimpleNamespace(path=path)) == ""
    loads = [[(0, 0)] * 4, [(2, 0), (0, 0), (1, 0), (0, 0)], [(0, 0), (1, 7), (0, 0), (0, 0)]]
    ends, paths = [(0, 1), (1, 3), (7, 2)], [(0,), (1, 2), (3,)]
    assert asked == [(source, target, 1, paths, on) for source, target in ends for on in loads]
    asked.clear()
    assert checked(kind, "test_takes_the_only_path", SimpleNamespace(path=path)) == ""
    assert asked == [(0, 1, 0, [()], [(0, 0)] * 4)]


@pytest.mark.parametrize("answer", [-1, 1, None])
def test_another_path_than_the_only_one_is_found(answer: int | None) -> None:
    policy = SimpleNamespace(path=lambda flow, loads: answer)
    said = checked(network_conformance.PathConformance, "test_takes_the_only_path", policy)
    assert said == f"path: answered {answer!r} of 1 paths; expected 0"


# ---- Collectives


class Sends:
    """A collective in which each rank sends each other rank some bytes."""

    def __init__(self, kinds: Sequence[str], share: Callable[[int], float], steps: int = 1, fixed: float = 0.0) -> None:
        self.kinds, self._share, self._steps, self._fixed = tuple(kinds), share, steps, fixed

    def phases(self, kind: str, ranks: Sequence[Rank], message: Any) -> list[Phase]:
        """Return one phase."""
        amount = message.bytes * self._share(len(ranks)) + self._fixed
        return [Phase([(one, two, amount) for one in ranks for two in ranks if one != two], self._steps)]


def _collective(monkeypatch: pytest.MonkeyPatch, check: str, made: Any) -> str:
    def phases(kind: str, algorithm: Any, ranks: Sequence[Rank], message: Any, has_inside: bool) -> list[Phase]:
        assert has_inside
        return list(algorithm.phases(kind, list(ranks), message))

    monkeypatch.setattr(network_conformance, "phases_of", phases)
    return checked(network_conformance.CollectiveConformance, check, made)


@pytest.mark.parametrize(
    ("kind", "share", "said"),
    [
        ("all-to-all", lambda ranks: 1 / ranks, ""),
        ("all-to-all", lambda ranks: 0.99 / ranks, "all-to-all: "),
        ("all-gather", lambda ranks: 1 / ranks, ""),
        ("all-gather", lambda ranks: 0.99 / (ranks * (ranks - 1)), "all-gather: "),
        ("reduce-scatter", lambda ranks: 1 / ranks, ""),
        ("reduce-scatter", lambda ranks: 0.99 / (ranks * (ranks - 1)), "reduce-scatter: "),
        ("all-reduce", lambda ranks: 1 / (ranks - 1), ""),
        ("all-reduce", lambda ranks: 0.99 / (ranks - 1), "all-reduce: "),
        ("broadcast", lambda ranks: 1 / (ranks - 1), ""),
        ("broadcast", lambda ranks: 0.99 / (ranks - 1), "broadcast: "),
        ("send", lambda ranks: 1.0, ""),
        ("send", lambda ranks: 0.99, "send: "),
    ],
)
def test_a_collective_that_sends_too_little_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: str, share: Callable[[int], float], said: str
) -> None:
    check = "test_every_cut_carries_what_the_ranks_behind_it_need"
    found = _collective(monkeypatch, check, Sends([kind], share))
    assert found.startswith(said)
    assert bool(found) is bool(said)


@pytest.mark.parametrize(
    ("kinds", "is_right"),
    [(["all-reduce"], True), (["send", "broadcast"], True), ([], False), (["all-reduce", "gossip"], False)],
)
def test_a_collective_has_kinds_that_there_are(kinds: list[str], is_right: bool) -> None:
    said = checked(network_conformance.CollectiveConformance, "test_has_kinds", Sends(kinds, lambda ranks: 1.0))
    assert (said == "") is is_right


@pytest.mark.parametrize(
    ("check", "made", "is_right"),
    [
        ("test_steps_are_there_where_bytes_go", Sends(["send"], lambda ranks: 1.0), True),
        ("test_steps_are_there_where_bytes_go", Sends(["send"], lambda ranks: 1.0, steps=0), False),
        ("test_bytes_are_in_proportion_to_the_message", Sends(["all-gather"], lambda ranks: 1.0), True),
        ("test_bytes_are_in_proportion_to_the_message", Sends(["all-gather"], lambda ranks: 1.0, fixed=1.0), False),
        ("test_bytes_are_in_proportion_to_the_message", Sends(["all-gather"], lambda ranks: 1.0, fixed=1e-9), True),
    ],
)
def test_steps_and_bytes_of_a_collective_that_are_wrong_are_found(
    monkeypatch: pytest.MonkeyPatch, check: str, made: Any, is_right: bool
) -> None:
    assert (_collective(monkeypatch, check, made) == "") is is_right


@pytest.mark.parametrize(
    ("moved", "steps", "powers", "said"),
    [
        (1.0, 0, False, ""), (1.0, 0, True, ""), (1.0, 1, False, "all-gather over 2: steps"),
        (1.01, 0, False, "all-gather over 2: bytes"), (0.99, 0, False, "all-gather over 2: bytes"),
    ],
)  # fmt: skip
def test_a_closed_form_of_other_bytes_or_steps_is_found(
    monkeypatch: pytest.MonkeyPatch, moved: float, steps: int, powers: bool, said: str
) -> None:
    """Each rank sends each other its part: of n ranks (n - 1) / n of the message, in one step."""
    made = Sends(["all-gather", "send"], lambda ranks: 1 / ranks)
    sizes: list[int] = []

    def round_on(kind: str, size: int) -> tuple[float, int]:
        sizes.append(size)
        return moved * (size - 1) / size, 1 + steps

    made.round_on, made.powers_of_two = round_on, powers  # type: ignore[attr-defined]
    assert _collective(monkeypatch, "test_the_closed_form_is_what_it_sends", made) == said
    if not said:
        assert sizes == ([2, 4, 8] if powers else [2, 3, 4, 5, 8])


# ---- Orders, interference, admission


@pytest.mark.parametrize(
    ("key", "is_right"),
    [
        (lambda job, now_s: (job.num_gpus, job.number), True),
        (lambda job, now_s: float("nan"), False),
        (lambda job, now_s: float("nan") if job.number == 19 else 1.0, False),
        (lambda job, now_s: frozenset({job.number}), False),
    ],
)
def test_keys_that_do_not_compare_are_found(key: Callable[..., Any], is_right: bool) -> None:
    said = checked(policy_conformance.OrderingConformance, "test_keys_are_totally_ordered", SimpleNamespace(key=key))
    assert (said == "") is is_right


@pytest.mark.parametrize(("share", "is_right"), [(0, True), (1000, True), (-1, False), (1001, False), (-1e-9, False)])
def test_a_penalty_outside_its_bounds_is_found(share: float, is_right: bool) -> None:
    check = "test_penalties_are_shares"
    for pair in ((None, None), ("b", "b"), ("a", None)):
        model = SimpleNamespace(penalty_share=lambda *asked, pair=pair: share if asked == pair else 1)
        assert (checked(policy_conformance.InterferenceConformance, check, model) == "") is is_right


def test_a_penalty_that_changes_is_found() -> None:
    """There are nine pairs, each asked twice."""
    for last, said in ((0.5, ""), (0.25, "assert")):
        told = iter([0.5] * 17 + [last])
        model = SimpleNamespace(penalty_share=lambda *_, told=told: next(told))
        found = checked(policy_conformance.InterferenceConformance, "test_penalties_are_shares", model)
        assert found.partition(" ")[0] == said


@pytest.mark.parametrize(
    ("placed", "said"),
    [(None, ""), ([0], "assert")],
)
def test_a_job_that_no_gpu_holds_and_that_is_placed_is_found(placed: Any, said: str) -> None:
    check = "test_waits_when_no_gpu_has_the_memory"
    by_one = SimpleNamespace(place=lambda job, cluster: placed)
    rounds = SimpleNamespace(place_round=lambda jobs, cluster: [] if placed is None else [(next(iter(jobs)), placed)])
    for policy in (by_one, rounds):
        assert checked(policy_conformance.PlacementConformance, check, policy).startswith(said)
        assert bool(checked(policy_conformance.PlacementConformance, check, policy)) is bool(said)


@pytest.mark.parametrize("odd_run", [None, 1, 2, 10, 11])
@pytest.mark.parametrize("state", ["finished", "dropped", "waiting"])
def test_elastic_runs_that_differ_or_do_not_end_are_found(
    monkeypatch: pytest.MonkeyPatch, odd_run: int | None, state: str
) -> None:
    """Of each seed there are three runs, of which the last is recorded."""
    made: list[bool] = []

    def run(workload: Workload, cluster: Any, *, timeline: bool, seed: int, **options: Any) -> Any:
        made.append(timeline)
        states = ["finished", state if seed == 3 else "finished"]
        return SimpleNamespace(jobs={"state": states}, finish=[1, 3 if odd_run == len(made) - 1 else 2])

    monkeypatch.setattr(policy_conformance, "simulate", run)
    monkeypatch.setattr(policy_conformance, "finishes_of", lambda result: result.finish)
    _without_workloads(monkeypatch, policy_conformance)
    check = "test_every_job_ends_though_servers_come_and_go"
    said = checked(policy_conformance.AllocationConformance, check, Plain())
    expected = {None: "", 1: "the same seed gives the same run", 2: "recording changed it"}
    same = expected[None if odd_run is None else odd_run % 3]
    assert said.startswith("assert") if state == "waiting" and odd_run not in (1, 2) else said == same
    assert made == ([False, False, True] * 4)[: len(made)]
    assert len(made) == (3 if odd_run in (1, 2) else 12)


@pytest.mark.parametrize(
    ("fault", "is_told"),
    [("limit: x", True), ("lending: x", True), ("victims: x", True), ("GPUs: x", True), ("needless: x", False),
     ("starvation: x", False), ("loop: x", False)],
)  # fmt: skip
def test_faults_of_limits_are_told_and_matters_of_taste_are_not(
    monkeypatch: pytest.MonkeyPatch, fault: str, is_told: bool
) -> None:
    played: list[Any] = []

    def play(case: Any, policy: Any) -> tuple[list[str], list[int]]:
        played.append(case)
        return ([fault] if len(played) == 20 else []), []

    monkeypatch.setattr(admission_conformance, "play", play)
    monkeypatch.setattr(admission_conformance, "random_case", lambda rng: "case")
    checks = type("Checks", (admission_conformance.AdmissionConformance,), {"make": lambda self: None})()
    said = failure(lambda: checks.test_keeps_limits(0))
    assert said.startswith(f"['{fault}'] in") if is_told else said == ""
    assert len(played) == 20


def test_answers_that_differ_when_asked_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for odd in (None, 0, 19):
        told: list[int] = []

        def play(case: Any, policy: Any, told: list[int] = told, odd: int | None = odd) -> tuple[list[str], list[int]]:
            told.append(len(told))
            return [], [7 if told[-1] == odd else 0]

        monkeypatch.setattr(admission_conformance, "play", play)
        monkeypatch.setattr(admission_conformance, "random_case", lambda rng: "case")
        said = checked(admission_conformance.AdmissionConformance, "test_decides_alike_each_time", None)
        assert (said == "") is (odd is None)
        assert len(told) == (2 if odd == 0 else 20)
