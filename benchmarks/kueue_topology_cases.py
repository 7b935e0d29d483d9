"""Kueue's own cases of where topology-aware scheduling puts pods, as :mod:`kueue_tables` has them decided here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from kueue_workloads import amount, resource_name
from scheduler_tables import NotModelledError, refuse

from algorithms.placement.kueue_topology import Domain, DomainTree, Request, Rooms, assigned, fewest, spread

_OTHER_GATES = {
    "TASRespectNodeAffinityPreferred": "affinity to nodes",
    "ElasticJobsViaWorkloadSlices": "workloads that grow",
    "SkipReassignmentForPodOwnedWorkloads": "replacing a node that failed",
}
_OTHER_FIELDS = {
    "workload": "replacing a node that failed",
    "pods": "pods of others on the nodes",
    "priorFlavorUsage": "flavors that share nodes",
    "priorOwnUsage": "flavors that share nodes",
    "aggregatedDomainUsages": "flavors that share nodes",
}
_OTHER_OF_SETS = {
    "previousAssignment": "workloads that grow",
    "nodeAffinity": "affinity to nodes",
    "nodeSelector": "node selectors",
    "tolerations": "taints",
    "podSetGroupName": "a leader beside the workers: the workers of a job are alike",
}
_HOST = "LabelHostname"


def topology_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return how many pods of each set go to which domain, and how many are wanted to."""
    gates = {name for name, on in ({"TASProfileMixed": True} | (case.get("featureGates") or {})).items() if on}
    refuse(_OTHER_GATES, gates)
    refuse(_OTHER_FIELDS, {name for name, value in case.items() if value})
    if not isinstance(case["levels"], list) or not isinstance(case["nodes"], list):
        raise NotModelledError("levels or nodes that a call or a loop makes, which is not run")
    levels = [str(level) for level in case["levels"]]
    free = _free(case, levels)
    got, wanted = [], []
    for each in case["podSets"]:
        refuse(_OTHER_OF_SETS, {name for name, value in each.items() if value})
        needs = {resource_name(name): _need(name, value) for name, value in each.get("requests", {}).items()} | {
            "pods": 1
        }
        names = sorted(free)
        room = {_path(place, names): _room(free[path], needs) for place, path in enumerate(names)}
        request = _request(each, levels)
        even, least_free = "TASBalancedPlacement" in gates, "TASProfileMixed" in gates
        chosen = None
        if room and request:
            rooms = Rooms(DomainTree(list(room)), np.array(list(room.values())), request)
            chosen = assigned(rooms, request, least_free=least_free, even=even)
        by_name = {names[path[-1]]: count for path, count in (chosen or {}).items()}
        for path, count in by_name.items():
            free[path] = {name: left - int(count * needs.get(name, 0)) for name, left in free[path].items()}
        given = each.get("wantAssignment")
        shown = len(given["Levels"]) if given else 0
        got.append({path[-shown:]: count for path, count in by_name.items()})
        wanted.append({tuple(to["Values"]): to["Count"] for to in given["Domains"]} if given else {})
    return got, wanted


def chosen_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return which domains hold a job's slices, and which are wanted to."""
    chosen = fewest(_domains(case), case["workerCount"], 1)
    return {domain.path[0] for domain in chosen or ()}, {int(name[1:]) for name in case["want"]}


def spread_case(case: dict[str, Any]) -> tuple[Any, Any]:
    """Return how many slices each domain gets, and how many are wanted."""
    chosen = spread(_domains(case), case["sliceCount"], case["sliceSize"], case["threshold"])
    wanted = {int(name[1:]): (state["podCount"], state["sliceCount"]) for name, state in (case["want"] or {}).items()}
    return {domain.path[0]: (domain.pods, domain.slices) for domain in chosen or ()}, wanted


def not_read(why: str) -> Callable[[dict[str, Any]], tuple[Any, Any]]:
    """Return what refuses all cases of a table, and why."""

    def refuse(_: dict[str, Any]) -> tuple[Any, Any]:
        raise NotModelledError(why)

    return refuse


def _domains(case: dict[str, Any]) -> list[Domain]:
    """Return the domains of a case without a leader, named d1 and so on."""
    if case["leaderCount"]:
        raise NotModelledError(_OTHER_OF_SETS["podSetGroupName"])
    states = [(int(each["domain"]["id"][1:]), each["state"]) for each in case["domains"]]
    return [Domain((name,), state["podCount"], state["sliceCount"]) for name, state in states]


def _path(place: int, names: list[tuple[str, ...]]) -> tuple[int, ...]:
    """Return a domain's path by numbers that are in the order of the names; the last is its place."""
    own = names[place]
    above = [sorted({name[: level + 1] for name in names}).index(own[: level + 1]) for level in range(len(own) - 1)]
    return (*above, place)


def _free(case: dict[str, Any], levels: list[str]) -> dict[tuple[str, ...], dict[str, int]]:
    """Return what is free in each domain of the lowest level, by the labels of its levels."""
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for node in case["nodes"]:
        if node.all("Taints"):
            raise NotModelledError("taints")
        labels = {str(args[0]): args[1] for args in node.all("Label")}
        asked = {str(name): value for name, value in (case.get("nodeLabels") or {}).items()}
        matches = asked.items() <= labels.items() and all(level in labels for level in levels)
        if not matches or not node.all("Ready") or node.all("Unschedulable"):
            continue
        of_domain = found.setdefault(tuple(labels[level] for level in levels), {})
        for name, value in node.last("StatusAllocatable", {}).items():
            resource = resource_name(name)
            of_domain[resource] = of_domain.get(resource, 0) + amount(value, resource)
    return found


def _room(free: dict[str, int], needs: dict[str, float]) -> int:
    """Return how many pods a domain has room for."""
    return max(0, min(int(free.get(name, 0) // need) for name, need in needs.items() if need))


def _need(name: str, value: Any) -> float:
    """Return what a pod needs, which is said in thousandths of processors or in bytes."""
    return float(value) / (2**20 if resource_name(name) == "memory" else 1)


def _request(each: dict[str, Any], levels: list[str]) -> Request | None:
    """Return what a set of pods asks for; None if it names a level that is not there."""
    asked = each.get("topologyRequest") or {}
    layers = [(layer["Size"], layer["Topology"]) for layer in asked.get("PodsetSliceRequiredTopologyConstraints") or []]
    if (level := asked.get("PodSetSliceRequiredTopology")) is not None:
        layers.insert(0, (asked.get("PodSetSliceSize") or 0, level))
    named = [level for level in (asked.get("Required"), asked.get("Preferred")) if level is not None]
    if any(level not in levels for level in [*named, *(level for _, level in layers)]):
        return None
    places = [levels.index(level) for _, level in layers]
    sizes = [size for size, _ in layers]
    wrong = any(b <= a for a, b in pairwise(places))
    if wrong or not all(sizes) or any(a % b for a, b in pairwise(sizes)):
        return None
    level = levels.index(named[0]) if named else None
    return Request(each["count"], level, asked.get("Required") is not None, tuple(zip(sizes, places, strict=True)))
