"""Asks policies and models, and refuses answers that are none: who, which job, when, and what was wrong."""

from __future__ import annotations

import copy
import functools
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.decisions import checks
from ddlsched.errors import InputError, InvalidDecisionError, PluginError, guarded, label
from ddlsched.network.contention import SharedLink
from ddlsched.network.rates import LEVELS
from ddlsched.network.topology import Link
from ddlsched.policies.compiling.source import short_path
from ddlsched.policies.doors import Allocation, Drop
from ddlsched.policies.elastic_views import CapacityView, ElasticJobView
from ddlsched.policies.quota_tree import QuotaNode
from ddlsched.policies.tenants_view import Admission, NotAdmitted, TenantsView
from ddlsched.policies.views import ClusterView, FlowView, JobQueue, JobView, LinkLoads, NetworkView, TransferView
from ddlsched.units import MAX_NS, NS_PER_S, is_whole, ns_from_s, s_from_ns
from ddlsched.workload.elastic_job import ConstantRescaleCost, ElasticJob, Rescale, RescaleCost
from ddlsched.workload.job import Job

_FRAMEWORK = Path(__file__).parents[2]

_MEND = "let begin(cluster, rng) return an object that holds what a run remembers"
METHODS = {
    "placement": ("place", "place_round"),
    "order": ("key",),
    "communication": ("admit", "transfer_key", "select"),
    "allocation": ("allocate",),
    "path": ("path",),
    "admission": ("admit",),
}
"""What the policies of a run are asked, by their kinds."""

STREAMS = ("placement", "order", "communication", "jobs", "capacity", "allocation", "path", "admission")
"""What draws random numbers of its own in a run; a new one goes last, so that the others draw what they did."""


def random_streams(seed: int) -> dict[str, np.random.Generator]:
    """Return the random numbers of everything that draws some in a run of a seed, by what it is."""
    seeds = np.random.SeedSequence(seed).spawn(len(STREAMS))
    return {name: np.random.default_rng(own) for name, own in zip(STREAMS, seeds, strict=True)}


def _begun(kind: str, policy: Any, cluster: Cluster, rng: np.random.Generator) -> Any:
    """Return what is asked during a run of a policy that has ``begin``: its answer."""
    answer = guarded(f"{kind} {label(policy)}: begin", lambda: policy.begin(cluster, rng))
    if not any(hasattr(answer, method) for method in METHODS[kind]):
        methods = " or ".join(METHODS[kind])
        raise PluginError(f"{kind} {label(policy)}: begin answered {answer!r}; expected an object with {methods}")
    return answer


def communication_form(policy: Any) -> str | None:
    """Return which of ``select``, ``transfer_key`` and ``admit`` a policy has: that of the nearest class, or None."""
    for kind in type(policy).__mro__:
        for form in ("select", "transfer_key", "admit"):
            if callable(vars(kind).get(form)):
                return form
    return next((form for form in ("select", "transfer_key", "admit") if hasattr(policy, form)), None)


class CheckedPolicies:
    """The policies of a run, begun on a cluster, behind checks.

    Parameters
    ----------
    cluster, streams
        Where they decide, and their random numbers: :func:`random_streams` of the run's seed.
    contention
        The contention model, bound to the network.
    rescale_cost
        Of elastic jobs without a cost of their own.
    policies
        Those of the run, by kinds (``METHODS``); of a kind that is None or left out nothing is asked.
    """

    def __init__(
        self,
        cluster: Cluster,
        streams: Mapping[str, np.random.Generator],
        *,
        contention: Any,
        rescale_cost: RescaleCost | None = None,
        **policies: Any,
    ) -> None:
        self._given: dict[str, Any] = dict.fromkeys(METHODS) | policies
        self._memory = checks.FieldsBefore(self._given, _MEND)
        begun = {kind: self._begin(kind, policy, cluster, streams[kind]) for kind, policy in self._given.items()}
        self.placement, self.order, self.communication = begun["placement"], begun["order"], begun["communication"]
        self.allocation, self.path, self.contention = begun["allocation"], begun["path"], contention
        self.admission = begun["admission"]
        self.communication_form = communication_form(self.communication)
        """Whether the communication policy has ``admit``, ``transfer_key`` or ``select``."""
        self._rescale_cost = ConstantRescaleCost() if rescale_cost is None else rescale_cost

    def _begin(self, kind: str, policy: Any, cluster: Cluster, rng: np.random.Generator) -> Any:
        """Return what is asked during a run of a policy, and note it if that is the policy itself."""
        if not hasattr(policy, "begin"):
            return policy
        again = functools.partial(_begun, kind, cluster=cluster, rng=copy.deepcopy(rng))
        if (answer := _begun(kind, policy, cluster, rng)) is policy:
            self._memory.note(kind, policy, again)
        return answer

    def say_what_they_keep(self) -> None:
        """Say on stderr which policies' fields have changed since they were begun, and how to mend that."""
        self._memory.say_what_changed()

    @property
    def advance_run(self) -> Callable[[Any], int] | None:
        """What calls the loop in the driver's stead, given the run, and returns its question, if a policy does."""
        asked = self.placement, self.communication, self.allocation
        return next((policy.advance_run for policy in asked if hasattr(policy, "advance_run")), None)

    @property
    def placement_has_rounds(self) -> bool:
        """Whether the placement policy decides about all jobs that wait at once."""
        return hasattr(self.placement, "place_round")

    def place_round(self, queue: JobQueue, cluster: ClusterView) -> Iterator[tuple[int, list[int]]]:
        """Yield the jobs that a placement policy starts, and their GPUs, each checked after the one before."""
        about = f", {len(queue)} queued jobs"
        ask = functools.partial(self._ask, "placement", about, cluster.now_s)
        starts = ask(lambda: iter(self.placement.place_round(queue, cluster)))
        left = set(queue.numbers.tolist())
        while (start := ask(lambda: next(starts, None))) is not None:
            if wrong := checks.what_is_wrong_with_start(start, left, cluster):
                raise InvalidDecisionError(f"placement {self.label('placement')} at {cluster.now_s} s{wrong}")
            job, gpus = start
            left.discard(job.number)
            yield job.number, [int(gpu) for gpu in gpus]

    def reservations_ns(self) -> Mapping[int, int]:
        """Return when a placement or admission policy expects jobs to start, by number; none if it does not say."""
        tells = [policy for policy in (self.placement, self.admission) if hasattr(policy, "reservations_ns")]
        return {number: time_ns for policy in tells for number, time_ns in policy.reservations_ns().items()}

    def label(self, kind: str) -> str:
        """Return the name of the policy of a kind, for messages."""
        return label(self.contention if kind == "contention" else self._given[kind])

    def _ask(self, kind: str, about: str | Callable[[], str], now_s: float, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except PluginError:
            raise  # of a policy that this one has asked
        except (Exception, SystemExit) as error:
            when = f"at {now_s} s{about if isinstance(about, str) else about()}"
            if isinstance(error, InputError):  # the policy says that it cannot do with what the run was given
                raise InputError(f"{kind} {self.label(kind)} {when}: {error}") from error
            raise PluginError(
                f"{kind} {self.label(kind)} raised {type(error).__name__} {when}: {error}{_where(error)}"
            ) from error

    def _nonsense(self, kind: str, about: str, now_s: float, what: str) -> PluginError:
        return PluginError(f"{kind} {self.label(kind)} at {now_s} s{about}: {what}")

    def _invalid(self, kind: str, about: str, now_s: float, what: str) -> InvalidDecisionError:
        return InvalidDecisionError(f"{kind} {self.label(kind)} at {now_s} s{about}: {what}")

    def key(self, job: JobView, now_s: float) -> Any:
        """Return an ordering policy's key of a job."""
        return self._key("order", f", job {job.job_id!r}", now_s, lambda: self.order.key(job, now_s))

    def _key(self, kind: str, about: str, now_s: float, question: Callable[[], Any]) -> Any:
        key = self._ask(kind, about, now_s, question)
        if not _can_be_ordered(key):
            raise self._nonsense(kind, about, now_s, f"its key is {key!r}; expected numbers that can be ordered")
        return key

    def in_order(self, jobs: Iterable[JobView], now_s: float) -> list[int]:
        """Return the numbers of jobs by ascending (key, number); each is asked for once, in the order given."""
        views = {job.number: job for job in jobs}
        keys = {number: self.key(view, now_s) for number, view in views.items()}
        return self._sorted("order", keys, lambda: f", job {next(iter(views.values())).job_id!r} and others", now_s)

    def _sorted(self, kind: str, keys: Mapping[int, Any], about: Callable[[], str], now_s: float) -> list[int]:
        """Return numbers by ascending (key, number)."""
        try:
            return sorted(keys, key=lambda number: (keys[number], number))
        except Exception as error:
            some = ", ".join(map(repr, islice(keys.values(), 3)))
            raise self._nonsense(kind, about(), now_s, f"its keys {some} cannot be compared ({error})") from error

    def place(self, job: JobView, cluster: ClusterView) -> list[int] | None:
        """Return the GPUs that a placement policy chose, checked, or None."""
        about = f", job {job.job_id!r}"
        chosen = self._ask("placement", about, cluster.now_s, lambda: self.placement.place(job, cluster))
        if chosen is None:
            return None
        if wrong := checks.what_is_wrong_with_gpus(chosen, job, cluster):
            raise self._invalid("placement", about, cluster.now_s, f"place {wrong}")
        return [int(gpu) for gpu in chosen]

    @property
    def path_chosen_anew(self) -> Any:
        """The path policy if it is asked whenever a transfer becomes ready, and not when its job is placed, or None."""
        chosen = getattr(self.path, "chosen", "placement")
        if chosen not in ("placement", "transfer"):
            what = f"path {self.label('path')}: chosen is {chosen!r}"
            raise PluginError(f"{what}; expected 'placement' or 'transfer'")
        return self.path if chosen == "transfer" else None

    def choose_path(self, flow: FlowView, network: LinkLoads) -> int:
        """Return which of its paths a path policy gives a flow."""
        about = f", job {flow.job.job_id!r}"
        chosen = self._ask("path", about, network.now_s, lambda: self.path.path(flow, network))
        if not is_whole(chosen, 0, len(flow.paths) - 1):
            what = f"path answered {chosen!r} for the flow from server {flow.source} to {flow.target}"
            expected = f"expected a whole number from 0 to {len(flow.paths) - 1}, as it has {len(flow.paths)} paths"
            raise self._invalid("path", about, network.now_s, f"{what}; {expected}")
        return int(chosen)

    @property
    def order_stops(self) -> bool:
        """Whether the order may stop running jobs."""
        return hasattr(self.order, "stops")

    @property
    def placement_moves(self) -> bool:
        """Whether the placement policy may move running jobs."""
        return hasattr(self.placement, "moves")

    def stops_or_moves(self, kind: str) -> bool:
        """Return whether the policy of a kind may take running jobs off their GPUs."""
        policy = getattr(self, kind)
        return any(hasattr(policy, method) for method in ("stops", "moves", "admit") if kind != "communication")

    def stops(self, running: Sequence[JobView], queue: JobQueue, cluster: ClusterView) -> list[int]:
        """Return the numbers of the running jobs that an order stops, checked."""
        about = f", {len(running)} running jobs"
        answer = self._ask("order", about, cluster.now_s, lambda: list(self.order.stops([*running], queue, cluster)))
        if wrong := checks.what_is_wrong_with_stops(answer, running):
            raise InvalidDecisionError(f"order {self.label('order')} at {cluster.now_s} s: {wrong}")
        return [job.number for job in answer]

    def moves(self, running: Sequence[JobView], cluster: ClusterView) -> Iterator[tuple[int, list[int]]]:
        """Yield the running jobs that a placement policy moves, and where to, each checked after the one before."""
        about = f", {len(running)} running jobs"
        question = lambda: list(self.placement.moves(running, cluster))  # noqa: E731
        left = {id(job) for job in running}
        for answer in self._ask("placement", about, cluster.now_s, question):
            if wrong := checks.what_is_wrong_with_move(answer, left, cluster):
                raise InvalidDecisionError(f"placement {self.label('placement')} at {cluster.now_s} s{wrong}")
            job, gpus = answer
            left.discard(id(job))
            yield job.number, [int(gpu) for gpu in gpus]

    def admit(self, transfer: TransferView, network: NetworkView) -> bool:
        """Return whether a communication policy starts a transfer."""
        about = f", job {transfer.job.job_id!r}"
        question = lambda: self.communication.admit(transfer, network)  # noqa: E731
        answer = self._ask("communication", about, network.now_s, question)
        if not isinstance(answer, bool | np.bool_) and not is_whole(answer, 0, 1):
            what = f"admit answered {answer!r}; expected True or False"
            raise self._nonsense("communication", about, network.now_s, what)
        return bool(answer)

    def admit_jobs(
        self, tenants: TenantsView, cluster: ClusterView, new: Set[int]
    ) -> Iterator[Admission | NotAdmitted]:
        """Yield who may start, and why others may not, each checked after the one before was carried out.

        ``new`` holds, then, the numbers of those that have started in this round.
        """
        about = f", {len(tenants.pending)} jobs that wait"
        ask = functools.partial(self._ask, "admission", about, tenants.now_s)
        answers = ask(lambda: iter(self.admission.admit(tenants, cluster)))
        while (answer := ask(lambda: next(answers, None))) is not None:
            if wrong := checks.what_is_wrong_with_admission(answer, tenants, cluster, new):
                raise InvalidDecisionError(f"admission {self.label('admission')} at {tenants.now_s} s{wrong}")
            yield answer

    def check_quotas(self, node: QuotaNode, answer: Admission, now_s: float) -> None:
        """Check that no queue has borrowed more than it may, with a job that has just been admitted.

        Raises
        ------
        InvalidDecisionError
            The queue, or a group that it belongs to, has.
        """
        for above in (node, *node.above()):
            if above.above_limit(answer.kind):
                limit = above.own(answer.kind)
                would_use = f"queue {above.name!r} would use {above.used[answer.kind]} GPUs"
                most = f"at most {above.quota.get(answer.kind, 0)} and {limit.borrowing_limit} borrowed"
                about = f", job {answer.job.job_id!r}"
                raise self._invalid("admission", about, now_s, f"{would_use}; expected {most}")

    def transfer_key(self, transfer: TransferView, network: NetworkView) -> Any:
        """Return a preemptive policy's key of a transfer."""
        question = lambda: self.communication.transfer_key(transfer, network)  # noqa: E731
        return self._key("communication", f", job {transfer.job.job_id!r}", network.now_s, question)

    def select_by_key(self, transfers: Sequence[TransferView], network: NetworkView) -> set[int]:
        """Return the numbers of the transfers that share no link with one of a smaller (key, number) that was taken."""
        keys = {transfer.number: self.transfer_key(transfer, network) for transfer in transfers}
        links = {transfer.number: transfer.links for transfer in transfers}
        taken: set[int] = set()
        selected = set()
        for number in self._sorted("communication", keys, lambda: "", network.now_s):
            if taken.isdisjoint(links[number]):
                taken.update(links[number])
                selected.add(number)
        return selected

    def select(self, transfers: Sequence[TransferView], network: NetworkView) -> set[int]:
        """Return the numbers of the transfers that a preemptive policy lets run."""
        question = lambda: list(self.communication.select(list(transfers), network))  # noqa: E731
        answer = self._ask("communication", f", {len(transfers)} transfers", network.now_s, question)
        known = {transfer.number for transfer in transfers}
        for chosen in answer:
            if not isinstance(chosen, TransferView) or chosen.number not in known:
                what = f"select answered {chosen!r}; expected some of the transfers that it was given"
                raise self._nonsense("communication", "", network.now_s, what)
        return {chosen.number for chosen in answer}

    def rates(
        self, active: Sequence[TransferView], waiting: Sequence[TransferView], links: Sequence[Link], now_s: float
    ) -> np.ndarray:
        """Return a contention model's rates, bytes per second."""
        about = f", {len(active)} transfers"
        answer = self._ask("contention", about, now_s, lambda: self.contention.rates([*active], waiting, links))
        try:
            rates = np.array(answer, dtype=np.float64)
        except (TypeError, ValueError):
            rates = np.zeros(0)
        if rates.shape != (len(active),) or not np.all((rates > 0) & (rates < math.inf)):
            what = f"rates answered {answer!r}; expected {len(active)} finite numbers > 0"
            raise self._nonsense("contention", about, now_s, what)
        return rates

    def link_rate(self, transfer: TransferView, link: SharedLink, now_s: float) -> float:
        """Return how fast a transfer goes on a link, bytes per second."""
        about = f", job {transfer.job.job_id!r}"
        answer = self._ask("contention", about, now_s, lambda: self.contention.link_rate(transfer, link))
        if not isinstance(answer, Real) or not 0 < float(answer) < math.inf:
            what = f"link_rate answered {answer!r}; expected a finite number > 0"
            raise self._nonsense("contention", about, now_s, what)
        return float(answer)

    def shares(self, transfers: Sequence[TransferView], now_s: float) -> tuple[list[float], list[int]]:
        """Return the weights and the levels of transfers, each asked for both before the next one."""
        model, weights, levels = self.contention, list[float](), list[int]()
        about = lambda: f", job {transfers[len(levels)].job.job_id!r}"  # noqa: E731

        def question() -> None:
            for transfer in transfers:
                weight = model.weight(transfer)
                if not (type(weight) is float or isinstance(weight, Real)) or not 0 < float(weight) < math.inf:
                    what = f"weight answered {weight!r}; expected a finite number > 0"
                    raise self._nonsense("contention", about(), now_s, what)
                weights.append(float(weight))
                level = model.level(transfer)
                if not is_whole(level, 0, LEVELS - 1):
                    what = f"level answered {level!r}; expected a whole number from 0 to {LEVELS - 1}"
                    raise self._nonsense("contention", about(), now_s, what)
                levels.append(int(level))

        self._ask("contention", about, now_s, question)
        return weights, levels

    def allocate(
        self, jobs: Sequence[ElasticJobView], capacity: CapacityView, now_s: float
    ) -> Mapping[str, Allocation | Drop]:
        """Return what an allocation policy gives each elastic job, checked."""
        about = f", {len(jobs)} elastic jobs"
        answer = self._ask("allocation", about, now_s, lambda: self.allocation.allocate([*jobs], capacity, now_s))
        if wrong := checks.what_is_wrong_with_allocations(answer, jobs, capacity):
            raise self._invalid("allocation", about, now_s, wrong)
        allocated: Mapping[str, Allocation | Drop] = answer
        return allocated

    def rescale_ns(self, job: Job, change: Rescale) -> int:
        """Return what a change of a job's size takes, by its own model or the run's, nanoseconds."""
        own = job.rescale_cost if isinstance(job, ElasticJob) else None
        model = self._rescale_cost if own is None else own
        what = lambda: f"rescale cost {label(model)} at {change.time_s} s, job {job.job_id!r}"  # noqa: E731
        seconds = guarded(what, lambda: model(change))
        if not isinstance(seconds, int | float | np.number) or not 0 <= seconds < MAX_NS / NS_PER_S:
            raise PluginError(f"{what()}: answered {seconds!r}; expected seconds from 0")
        return ns_from_s(float(seconds))

    def wake_ns(self, kind: str, now_ns: int) -> int | None:
        """Return the first instant after now at which a policy wants to be asked again, or None."""
        policy, now_s = getattr(self, kind), s_from_ns(now_ns)
        if not hasattr(policy, "wake_s"):
            return None
        answer = self._ask(kind, "", now_s, lambda: policy.wake_s(now_s))
        if answer is None:
            return None
        if not isinstance(answer, int | float | np.number) or not -math.inf < answer < MAX_NS / NS_PER_S:
            raise self._nonsense(kind, "", now_s, f"wake_s answered {answer!r}; expected a time in seconds, or None")
        if answer <= now_s:
            return None
        wake_ns = ns_from_s(float(answer))
        return wake_ns + int(s_from_ns(wake_ns) < answer)  # never before the time asked for


def _where(error: BaseException) -> str:
    """Return the file and line of a plug-in's own code in which an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(_FRAMEWORK)]
    return f" ({short_path(own[-1].filename)}, line {own[-1].lineno})" if own else ""


def _can_be_ordered(key: Any) -> bool:
    """Return whether a key is a number, or a tuple of such; NaN is none."""
    if isinstance(key, tuple | list):
        return all(_can_be_ordered(part) for part in key)
    return isinstance(key, Real) and bool(key == key)


class StartsJobs(Protocol):
    """Carries out where jobs run."""

    def next_fitting(self, queue: JobQueue, place: int) -> int:
        """Return the first place in a queue, from ``place`` on, of a job that enough GPUs have room for, or -1."""

    def put(self, number: int, gpus: list[int]) -> None:
        """Start a job on GPUs, in placement order; it counts at once in what policies see."""


class StopsJobs(Protocol):
    """Carries out which jobs stop."""

    def leave(self, number: int) -> None:
        """Take a job off its GPUs."""


class SendsTransfers(Protocol):
    """Carries out who sends."""

    def network(self) -> NetworkView:
        """Return what a communication policy sees of the network now."""

    def start(self, transfer: TransferView) -> None:
        """Let a transfer send; it counts at once in what policies see."""

    def pause(self, transfer: TransferView) -> None:
        """Let a transfer that sends wait; it keeps its bytes."""


def start_queued(policies: CheckedPolicies, queue: JobQueue, cluster: ClusterView, acts: StartsJobs) -> list[int]:
    """Ask who of a queue starts, and where; return who did, by number."""
    started = []
    for number, gpus in _starts(policies, queue, cluster, acts):
        acts.put(number, gpus)
        started.append(number)
    return started


def _starts(
    policies: CheckedPolicies, queue: JobQueue, cluster: ClusterView, acts: StartsJobs
) -> Iterator[tuple[int, list[int]]]:
    """Yield who starts; a policy that goes job by job is asked for those, in order, that GPUs have room for."""
    if policies.placement_has_rounds:
        if len(queue):
            yield from policies.place_round(queue, cluster)
        return
    place = 0
    while (place := acts.next_fitting(queue, place)) >= 0:
        job = queue[place]
        gpus = policies.place(job, cluster)
        if gpus is not None:
            yield job.number, gpus
        place += 1


def stop_running(
    policies: CheckedPolicies, running: Sequence[JobView], queue: JobQueue, cluster: ClusterView, acts: StopsJobs
) -> list[int]:
    """Ask the order which running jobs, by number, stop for those that wait; return who did."""
    if not policies.order_stops or not len(queue) or not running:
        return []
    stopped = policies.stops(running, queue, cluster)
    for number in stopped:
        acts.leave(number)
    return stopped


def choose_transfers(policies: CheckedPolicies, candidates: Sequence[TransferView], acts: SendsTransfers) -> None:
    """Ask which of the ready transfers send, all of them in ascending order."""
    network, form = acts.network(), policies.communication_form
    if form == "admit":
        for transfer in candidates:
            if policies.admit(transfer, network):
                acts.start(transfer)
                network = acts.network()
        return
    ask = policies.select_by_key if form == "transfer_key" else policies.select
    selected = ask(candidates, network) if candidates else set()
    for transfer in candidates:
        if transfer.is_active and transfer.number not in selected:
            acts.pause(transfer)
        elif transfer.number in selected and not transfer.is_active:
            acts.start(transfer)
