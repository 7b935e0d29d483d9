"""What is wrong with an answer (GPUs for a job, stops, moves, GPUs of elastic jobs) and with a policy's fields.

A policy without ``begin`` that changes its fields would keep in them what the next run begins with.
"""

from __future__ import annotations

import copy
import functools
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import chain, islice
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from ddlsched.errors import abbreviated, say_once
from ddlsched.policies.doors import DROP, Allocation
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.tenants_view import Admission, NotAdmitted, TenantsView
from ddlsched.policies.views import ClusterView, JobView
from ddlsched.units import is_whole
from ddlsched.workload.groups import demands_of, slices_of

_WHOLE = (int, np.integer)
_MANY = 64


def what_is_wrong_with_gpus(
    chosen: Any, job: JobView, cluster: ClusterView, own: frozenset[int] = frozenset()
) -> str | None:
    """Return why GPUs are no place for a job, or None; ``own`` are those that it leaves."""
    try:
        gpus = list(chosen) if len(chosen) else []  # a generator has no length, and is empty when carried out
    except TypeError:
        return f"answered {chosen!r}; expected {job.num_gpus} GPU numbers or None"
    if not _are_free(gpus, job, cluster):
        wrong = _what_is_wrong_with_each(gpus, job, cluster, own)
        if wrong:
            return wrong
    return _what_is_torn(gpus, job, cluster) if job.required_levels else None


def _are_free(gpus: Sequence[Any], job: JobView, cluster: ClusterView) -> bool:
    """Return whether many GPUs are different eligible ones, as many as a job needs."""
    if len(gpus) < _MANY or len(gpus) != job.num_gpus or {*map(type, gpus)} != {int}:
        return False
    chosen, eligible = np.array(gpus), np.zeros(cluster.num_gpus, bool)
    eligible[cluster.eligible(job)] = True
    inside = chosen.min() >= 0 and chosen.max() < len(eligible)
    return bool(inside and eligible[chosen].all() and np.bincount(chosen).max() == 1)


def _what_is_wrong_with_each(
    gpus: Sequence[Any], job: JobView, cluster: ClusterView, own: frozenset[int]
) -> str | None:
    num_gpus, exclusive = cluster.num_gpus, cluster.exclusive
    for gpu in gpus:
        if isinstance(gpu, bool) or not isinstance(gpu, _WHOLE) or not 0 <= gpu < num_gpus:
            return f"answered GPU {gpu!r}; expected whole numbers from 0 to {num_gpus - 1}"
    if len(gpus) != job.num_gpus:
        return f"answered {len(gpus)} GPUs {gpus[:8]}; expected {job.num_gpus}"
    seen: set[int] = set()
    for gpu in gpus:
        if gpu in seen:
            return f"answered GPU {gpu} twice; expected {job.num_gpus} different ones"
        seen.add(gpu)
        if gpu in own:
            continue
        if exclusive and cluster.num_residents(gpu):
            return f"answered GPU {gpu}, which has a job; expected a free one, as the cluster is exclusive"
        if not cluster.fits(job, gpu):
            free = f"{cluster.free_memory_mb(gpu):g} MB free"
            return f"answered GPU {gpu}, which has {free}; expected at least {job.gpu_memory_mb:g} MB"
    return None


def _what_is_torn(gpus: Sequence[int], job: JobView, cluster: ClusterView) -> str | None:
    """Return which slice of a job is in several units of a level that it requires, or None."""
    servers = [cluster.server_of(gpu) for gpu in gpus]
    for part, level in demands_of(job.required_levels):
        units = cluster.network.units(level)
        for workers in slices_of(part, job.dag.groups, job.num_gpus):
            if len(found := {units[servers[worker]] for worker in workers}) > 1:
                return (
                    f"answered GPUs of {len(found)} units of the level {level!r} for workers {list(workers)[:8]}; "
                    "expected one, as its required_levels say (the placement 'levels' goes by them)"
                )
    return None


def what_is_wrong_with_start(answer: Any, waiting: set[int], cluster: ClusterView) -> str | None:
    """Return why an answer is no job that waits and its GPUs, or None; ``waiting`` are the numbers of jobs."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], JobView):
        return f": place_round answered {answer!r}; expected pairs of a job that waits and its GPUs"
    job, gpus = answer
    if job.number not in waiting:
        return f", job {job.job_id!r}: place_round answered a job that does not wait, or twice; expected one that waits"
    wrong = what_is_wrong_with_gpus(gpus, job, cluster)
    return None if wrong is None else f", job {job.job_id!r}: place_round {wrong}"


def what_is_wrong_with_stops(answer: Sequence[Any], running: Sequence[JobView]) -> str | None:
    """Return why an answer is no list of running jobs, each once, or None."""
    left = {id(job) for job in running}
    for job in answer:
        if not isinstance(job, JobView):
            return f"stops answered {job!r}; expected some of the running jobs that it was given"
        if id(job) not in left:
            again = any(job is other for other in running)
            why = "twice; expected each job once" if again else "which does not run; expected some of the running jobs"
            return f"stops answered job {job.job_id!r}{' ' if again else ', '}{why}"
        left.discard(id(job))
    return None


def what_is_wrong_with_admission(answer: Any, tenants: TenantsView, cluster: ClusterView, new: Set[int]) -> str | None:
    """Return why an answer is no job that may start, or may not, or None; ``new`` have started in this round."""
    if not isinstance(answer, Admission | NotAdmitted):
        return f": admit answered {answer!r}; expected Admission(...) or NotAdmitted(...)"
    about = f", job {answer.job.job_id!r}: admit answered"
    if answer.job.number not in tenants.pending:
        return f"{about} a job that does not wait; expected one that waits"
    if isinstance(answer, NotAdmitted):
        return None
    kinds = tenants.tenants.kinds
    if answer.kind not in (kinds or ("any",)):
        return f"{about} the kind {answer.kind!r}; expected one of {', '.join(kinds)}"
    victims = [victim.job.number for victim in answer.victims]
    if len(set(victims)) < len(victims) or not all(map(tenants.holdings.__contains__, victims)) or new & {*victims}:
        return f"{about} the victims {victims}; expected jobs that ran when the round began, each once"
    if answer.gpus is None:
        return None
    left = cluster.without([victim.job for victim in answer.victims]) if victims else cluster
    wrong = what_is_wrong_with_gpus(answer.gpus, answer.job, left)
    return None if wrong is None else f", job {answer.job.job_id!r}: admit {wrong}"


def what_is_wrong_with_move(answer: Any, movable: set[int], cluster: ClusterView) -> str | None:
    """Return why an answer is no job and its new GPUs, or None; ``movable`` are the ids of the views of jobs."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], JobView):
        return f": moves answered {answer!r}; expected pairs of a running job and its new GPUs"
    job, gpus = answer
    if id(job) not in movable:
        return f", job {job.job_id!r}: moves answered a job that it was not given, or twice; expected jobs that run"
    wrong = what_is_wrong_with_gpus(gpus, job, cluster, frozenset(job.gpus))
    if wrong is None and set(gpus) == set(job.gpus):
        wrong = f"answered the GPUs {list(job.gpus)} that the job has; expected others"
    return None if wrong is None else f", job {job.job_id!r}: moves {wrong}"


def what_is_wrong_with_allocations(answer: Any, jobs: Sequence[ElasticJobView], capacity: CapacityView) -> str | None:
    """Return why an answer cannot be carried out, or None."""
    if not isinstance(answer, Mapping):
        return f"allocate answered {answer!r}; expected a mapping from job_id to Allocation"
    by_id = {view.job_id: view for view in jobs}
    in_all = 0
    for job_id, given in answer.items():
        view = by_id.get(job_id)
        if view is None:
            return f"allocate answered job {job_id!r}; expected elastic jobs that it was given"
        wrong = _what_is_wrong_with_one(given, view)
        if wrong:
            return f"job {job_id!r}: {wrong}"
        in_all += 0 if given is DROP else given.num_gpus
    if in_all > capacity.num_gpus:
        return f"allocate answered {in_all} GPUs in all; expected at most the {capacity.num_gpus} that there are"
    return _what_is_wrong_with_named(answer, by_id, capacity)


def _what_is_wrong_with_one(given: Any, view: ElasticJobView) -> str | None:
    if given is DROP:
        return f"is dropped while it holds {view.num_gpus} GPUs; expected one that holds none" if view.gpus else None
    if not isinstance(given, Allocation):
        return f"is given {given!r}; expected an Allocation, or DROP"
    job, num_gpus, batch = view.job, given.num_gpus, given.batch
    if not is_whole(num_gpus, job.min_gpus, job.max_gpus):
        return f"is given {num_gpus!r} GPUs; expected {job.min_gpus} to {job.max_gpus}"
    least, most = job.smallest_batch(num_gpus), job.largest_batch(num_gpus)
    if batch is not None and not is_whole(batch, least, most):
        return f"is given a batch of {batch!r} on {num_gpus} GPUs; expected {least} to {most}"
    if given.gpus is not None and (not isinstance(given.gpus, Collection) or len(set(given.gpus)) != num_gpus):
        return f"is given the GPUs {abbreviated(given.gpus)}; expected {num_gpus} different ones"
    return None


def _what_is_wrong_with_named(
    answer: Mapping[str, Any], by_id: Mapping[str, ElasticJobView], capacity: CapacityView
) -> str | None:
    """Check the GPUs that an answer names: there, free or those of a job that changes, and given once.

    A job whose GPUs are not named keeps those that it has, if the number stays the same.
    """
    named = {job_id: given.gpus for job_id, given in answer.items() if given is not DROP and given.gpus is not None}
    if not named:
        return None
    usable = set(capacity.free_gpus).union(*(view.gpus for view in by_id.values()))
    taken = {
        gpu
        for job_id, given in answer.items()
        if given is not DROP and given.gpus is None and _stays_as_it_is(given, by_id[job_id])
        for gpu in by_id[job_id].gpus
    }
    for job_id, gpus in named.items():
        for gpu in gpus:
            if gpu not in usable or gpu in taken:
                return f"job {job_id!r}: is given GPU {gpu!r}; expected free ones, each once"
            taken.add(gpu)
    return None


def _stays_as_it_is(given: Allocation, view: ElasticJobView) -> bool:
    batch = view.job.largest_batch(given.num_gpus) if given.batch is None else given.batch
    return (given.num_gpus, batch, 0) == (view.num_gpus, view.batch, view.lost_gpus)


_MOST_VALUES = 10_000
_DEEPEST = 5
_HELD = (int, float, list, dict, set, deque, np.ndarray, np.random.Generator, random.Random, MemberDescriptorType)
"""What a class may hold that changes."""


class FieldsBefore:
    """What the fields of policies are before a run; ``mend`` says what to do about one that changes.

    Of those with ``begin`` nothing is noted, unless it answers the policy itself.
    """

    def __init__(self, policies: Mapping[str, Any], mend: str) -> None:
        self._mend = mend
        self._noted: dict[str, tuple[Any, dict[str, list[Any]], Callable[[Any], Any] | None]] = {}
        for kind, policy in policies.items():
            if policy is not None and not hasattr(policy, "begin"):
                self.note(kind, policy)

    def note(self, kind: str, policy: Any, begin: Callable[[Any], Any] | None = None) -> None:
        """Note a policy, which may have begun itself: then ``begin`` does that again, with what it was given."""
        self._noted[kind] = policy, _fields(policy), begin

    def say_what_changed(self) -> None:
        """Say on stderr, once in a process, of a field that it is not what it was, nor would be in a next run."""
        for kind, (policy, before, begin) in self._noted.items():
            after = _fields(policy)
            next_run = after if begin is None or before == after else _begun_again(policy, begin)
            changed = (name for name in before | after if before.get(name) != after.get(name) == next_run.get(name))
            for name in islice(changed, 1):
                say_once(
                    f"{kind} {type(policy).__name__}: its field {name!r} changed during the run, and the next run "
                    f"begins with what is in it; {self._mend}"
                )


def _begun_again(policy: Any, begin: Callable[[Any], Any]) -> dict[str, list[Any]]:
    """Return the fields with which a policy would begin the next run, none if it cannot be copied."""
    with suppress(Exception):
        return _fields(begin(copy.deepcopy(policy)))
    return {}


def _fields(policy: Any) -> dict[str, list[Any]]:
    """Return the plain values in each field of a policy, also in slots and in what its classes hold for all."""
    held = {
        name: getattr(policy, name, None) if isinstance(value, MemberDescriptorType) else value
        for kind in reversed(type(policy).__mro__)
        for name, value in vars(kind).items()
        if not name.startswith("__") and isinstance(value, _HELD)
    }
    return {name: [*islice(_values(value, _DEEPEST), _MOST_VALUES)] for name, value in (held | _own(policy)).items()}


def _own(value: Any) -> dict[str, Any]:
    """Return an object's fields; what a ``cached_property`` holds is none."""
    return {
        name: held
        for name, held in getattr(value, "__dict__", {}).items()
        if not isinstance(getattr(type(value), name, None), functools.cached_property)
    }


def _values(value: Any, depth: int) -> Iterator[Any]:
    """Yield the plain values in a value; what cannot be looked into is one itself."""
    if isinstance(value, bool | int | float | complex | str | bytes | None | np.generic):
        yield repr(value)
    elif isinstance(value, np.ndarray):
        yield value.shape, value.tobytes() if value.size <= _MOST_VALUES else id(value)
    elif isinstance(value, np.random.Generator):
        yield repr(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield value.getstate()
    elif depth and isinstance(value, list | tuple | deque | set | frozenset | Mapping):
        yield len(value)
        for part in chain.from_iterable(value.items()) if isinstance(value, Mapping) else value:
            yield from _values(part, depth - 1)
    elif depth and not isinstance(value, type | FunctionType | MethodType | ModuleType) and _own(value):
        yield from _values(_own(value), depth - 1)
    else:
        yield id(value)
