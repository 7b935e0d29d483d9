"""The engine's state: one flat array of records for each kind of thing.

Everything the event loop reads or writes is here, as 64-bit whole numbers and floats, so that compiled code
can run on it and a Python policy's view can read it live. Field names carry their unit; a field without
one is a count, a number (place in an array) or a flag.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np

from ddlsched.policies.job_view import JobView
from ddlsched.policies.view_parts import fields_of

Records: TypeAlias = Any
"""A numpy record array; its fields are known to numba, not to a type checker."""

_INTEGERS = {
    "run": (
        # where the run stands
        "now_ns next_arrival heap_size num_queued num_waiting num_active num_work num_finished num_jobs_left "
        "num_touched_gpus num_touched_links num_fresh num_entries num_job_links num_slices stamp events stage rounds "
        "computing_gpus allocated_gpus num_samples sampled_ns sample_step_ns next_sample_ns next_look_ns "
        "instant_ns late num_dormant num_open_gpus num_sorted skipped_iterations contended_iterations "
        "num_running first_due num_words jumps jumped_iterations "
        "num_components first_component num_finds leaps leapt_iterations jumped_contended "
        # what this instant must still do
        "must_place communicate rerate unweighed again clock_overflow num_elastic_queued components_changed "
        # jobs that are to move, or whose state is on its way
        "num_unsettled "
        # transfers that are ready and have yet to get their paths; links that may be covered or not covered any more
        "num_unrouted num_doubted_links "
        # whether the first of the transfers that are asked about in order is known to be admitted
        "first_admitted "
        # of transfers that stand for others: how many others run and wait; whether it may matter that these do all the
        # same, so that they must be simulated each by itself
        "others_active others_waiting num_folded doubt "
        # when a policy wants to be woken; -1 for never
        "wake_placement_ns wake_communication_ns "
        # when servers fail or come back, and when Python wants to see the state; the last ns for never
        "next_capacity_ns pause_ns "
        # what was configured
        "num_gpus record record_from_ns record_to_ns checkpoint_iterations jitter_seed "
        "skipping_networked sampling jumps_from_round grouping elastic exclusive penalised_once asks_moves asks_always "
        "rerouting "
        # a compiled path policy's; of the flows that are asked for together, the stamp of their links
        "path_address path_fields path_stamp "
        # policies: addresses of entries and of the records of fields (0: asked in Python), and what is known of them
        "order_address order_fields key_words rank_words order_ranked key_is_stable key_is_periodic "
        "communication communication_address communication_fields transfer_key_words refusal_lasts "
        "refused_by_link "
        "transfer_key_is_periodic contention rate_address level_address contention_fields weights_are_fixed "
        "message_parts "
        # of the policy asked now: places taken of the scratch array, and a stamp; the first door that failed, or -1
        "scratch_used seen failed_door "
        # addresses of parts of the loop that are compiled apart
        "wake_address examine_address sample_address group_address shares_address choosing_address"
    ),
    "job": (
        # what every event reads, together in the processor's cache
        "remaining_service_ns steps_left lockstep num_gpus first_task rank iterations_left shared_gpus "
        # fixed
        "arrival_ns iterations compute_ns service_ns cut_service_ns memory_bytes memory_class num_tasks "
        "first_worker first_transfer num_transfers first_source num_sources elastic kind "
        # of one whose workers do different things: its compute tasks, counted for each worker that runs them,
        # its collectives, for each tuple, and a number that changes from iteration to iteration
        "grouped group_steps num_tuples parity "
        # and, of those, the workers that are simulated for all
        "folded first_leader num_leaders "
        # fixed at placement
        "num_servers communication_ns start_ns finish_ns uneven start_iterations_left first_link num_links "
        "num_linked "
        # of a job that is to move: 1 until its iteration ends, then 2
        "leaving "
        # an undisturbed iteration, and the job's skipping over such
        "shared_links profiled period_ns period_busy_ns period_load_ns period_events dormant dormant_since_ns "
        "dormant_since_round dormant_place "
        # its component, and what is known of that
        "root next_member due next_due component component_stay stay found_root found_next changed component_size "
        "running_place snapshot ahead_ns anchor saved_ns tries window resting_until_ns component_anchor counts "
        # of a sampled run's component, at its root: the stretch that was simulated, and the leap from there; for how
        # long each of its jobs was measured, and by how much it changed in that time
        "stretch stretch_iterations stretch_left stretch_from_ns stretch_ns stretches_ns leap_left_ns leap_rest_ns "
        "measuring measured_ns first_of_links "
        # how many whole iterations it had in the last stretch, when the first began and how long they took together
        "whole_iterations whole_from_ns whole_ns "
        "stretch_gpu_wait_ns stretch_communicating_ns stretch_network_wait_ns stretch_key key_now "
        # of a component, at its root: what of a period is looked at for the samples within those that it jumps over
        "phases num_phases phases_from_ns phases_ns looks_ns samples_from_ns samples_step_ns computed_before_ns "
        # iterations until its GPUs are compared again, and from then to the next time
        "group_wait group_window "
        # progress
        "state load_left_ns stamp checkpoint_ns iteration_ns restarts restarting lost_ns busy_ns "
        # of an elastic job: samples an iteration, and those left when it was placed; 0 for others
        "batch samples_left lost_samples "
        # what it does now, since when, and the time spent on each
        "active_transfers waiting_transfers running_workers since_ns "
        "queueing_ns computing_ns gpu_wait_ns communicating_ns network_wait_ns restarting_ns "
        # the state of a job that is to move: transfers, those under way, for how long the job then holds its GPUs, when
        # it started again last, and when the last checkpoint that it saved while it worked was whole
        "first_flow num_flows flows_left hold_ns began_ns saved_ns "
        # its model among those of the throughputs
        "speed_row "
        # by how many iterations policies take it for longer than it is
        "misjudged_iterations"
    ),
    "task": (
        "duration_ns transfer compute_predecessors reduce_predecessors first_successor num_successors pending load_ns "
        "begins_ns ends_ns dag_task part first_member num_members "
        # of a job of groups: who computes it, and the parity of the iteration in which it ended last
        "worker ended"
    ),
    "worker": (
        "job gpu leader done_ns busy_ns first_ready num_ready first_flag next_ready previous_ready penalty_ppm "
        "memory_bytes spared_ns load_left_ns "
        # of a job of groups: the worker that is simulated for it
        "stands_for"
    ),
    "gpu": (
        "server worker task touched first_ready num_residents free_bytes started_ns busy_ns fits open_place "
        # of the GPUs that are simulated as one
        "leader group_size next_in_group residents_hash older stamp "
        # its place among the kinds of the throughputs
        "kind"
    ),
    "transfer": (
        "job task state since_ns first_entry num_entries stamp position segment_ns sharing times_sent fresh "
        # its strict priority, 0 the first, and the step of the filling that gave it its rate, or -1
        "level step seen "
        # whether its links carry different bytes
        "uneven "
        # for how many others it stands, and where all their links are listed
        "others first_crossing num_crossings end_ns "
        # the entry by which alone it is in the list of a link while it waits, or -1 if it is in those of all its links
        # and how many were on the fullest of its links when it was refused last, or 0
        "waits_on refused_at "
        # parts of its message that it has sent, and whether what is to come next is the end of one
        "parts_sent ends_part "
        # whether it has yet to get its paths, and the places that it has among the entries
        "unrouted entry_room "
        # the hops of its ring and its steps, if the loop chooses their paths; 0 hops: Python does
        "first_hop num_hops steps "
        # how many of its entries are at links that are not covered, how many bind it, and which link does of those that
        # it has for itself, or -1
        "num_open num_binding own_link"
    ),
    "link": (
        "head waiting_head count touched stamp busy_since_ns busy_ns next_link first_job num_jobs link_jobs "
        # for how long it was busy in the stretch of a sampled run
        "stretch_busy_ns "
        # of the filling: entries in the order in which their transfers were filled; then, while the link takes part,
        # how far it has come in that list, what is left to fill of a level, and when its next step is due
        "first_filled fill_stamp stale cursor last_step fill_level num_unfilled "
        "due_place due_level due_lead due_follower "
        # whether it cannot bind the one transfer on it, and whether it cannot bind any, as another link does before:
        # 2 once it has no step left
        "asleep covered "
        # whether it takes part in the filling, and in how many it did without a step; what transfers take of one that
        # does not
        "tight unused taken "
        # the link that is simulated for it, and for how long that had been busy when it began to be; whether transfers
        # stand for others on it
        "leader leader_busy_ns folded"
    ),
    # of the entries from a transfer's first on, ``open`` holds one after another those at links that are not covered,
    # and ``binding`` those that bind it; the lists of those that are placed are there whether or not they send
    "entry": "link transfer next previous next_filled previous_filled binding open next_placed previous_placed",
    # a link that a transfer crosses, or one that it stands for
    "crossing": "link",
    # a link's list of entries that are placed; while links are compared, what a transfer does on this one
    # then how many flows of the transfer that is getting its paths have it on theirs, and of which transfer that is
    "cover": "head doubted stamp crossings mark passed passed_stamp chosen chosen_stamp",
    # what a server of a job sends to the next in its ring, the paths that it may take, and the one that it takes now
    "hop": "job place source target first_path num_paths route chosen",
    "path": "first_link num_links",
    # a link's step in the filling of a level: whether it has one, then which, when in the filling, and the next of its
    # batch
    "step": "level chosen lead index next_follower",
    "filling": "level lead index open num_levels num_due num_stale num_rated stamp",
    "slice": "kind owner stay task iteration start_ns end_ns sharing",
    "sample": "time_ns allocated_gpus queued_jobs active_transfers waiting_transfers",
    "foresight": "running waiting",
}
_FLOATS = {
    "run": "per_byte_s penalty_per_byte_s latency_s busy_ns answer",
    "job": "busy_per_gpu_ns stretch_work iteration_work leap_carry",
    "gpu": "slowness relative_speed",
    "sample": "busy_ns",
    "foresight": "busy_ns",
    "transfer": "bytes latency_ns bytes_left latency_left_ns rate ns_per_byte weight new_rate alone_rate counted_share",
    "link": (
        "relative_bandwidth bandwidth_bytes_per_s bytes free unfilled due_share own_share "
        # what the last step took that took of it, at what share; and that if it has the same, but for rounding, or -1
        "first_taken taken_share tied_share "
        # what it carried in the stretch of a sampled run, and what of iterations that end in the leap, and pass in it
        "stretch_bytes leap_bytes passing_bytes"
    ),
    "step": "lead_share share",
    "filling": "lead_share",
    "entry": "share units",
    "crossing": "share",
    "cover": "least_share greatest_share",
    "path": "latency_s",
    "slice": "rate",
}

_FIRST = {
    "task": "pending reduce_predecessors transfer worker duration_ns first_successor num_successors ended load_ns",
    "worker": "job gpu first_flag num_ready first_ready busy_ns done_ns penalty_ppm",
    "gpu": "worker task touched first_ready started_ns group_size leader num_residents",
    "transfer": (
        "job task state since_ns first_entry num_entries position bytes "
        "bytes_left latency_left_ns rate ns_per_byte others stamp fresh waits_on "
        "num_open num_binding new_rate alone_rate weight latency_ns sharing times_sent"
    ),
    "link": "head waiting_head count touched busy_since_ns busy_ns asleep covered tight taken relative_bandwidth",
    "entry": "link transfer next previous open binding units share",
}
"""What every event reads lies together, so that it takes few lines of the processor's cache, which have 64 bytes."""


def make_records(kind: str, count: int) -> Records:
    """Return ``count`` zeroed records of a kind: a field's name in :class:`State`, without its plural."""
    dtype = _dtype(kind)
    room = np.zeros(count * dtype.itemsize + 64, np.uint8)
    first = -room.ctypes.data % 64
    return room[first : first + count * dtype.itemsize].view(dtype).view(np.recarray)


@cache
def _dtype(kind: str) -> np.dtype[Any]:
    fields: dict[str, type] = dict.fromkeys(_INTEGERS[kind].split(), np.int64)
    fields |= dict.fromkeys(_FLOATS.get(kind, "").split(), np.float64)
    if kind == "job":  # and what only policies see
        for field in fields_of(JobView).values():
            fields.setdefault(field.record, np.float64 if "float" in field.kind else np.int64)
    names = [*dict.fromkeys([*_FIRST.get(kind, "").split(), *fields])]
    size = -len(names) % (4 if kind in _FIRST else 1) + len(names)
    return np.dtype({"names": names, "formats": [fields[name] for name in names], "itemsize": 8 * size})


class Columns:
    """The fields of records as plain arrays, an attribute each: quick to read one value from in Python."""

    def __init__(self, records: Records) -> None:
        self._plain = np.asarray(records)  # a record array takes ten times as long to find a field

    def __getattr__(self, name: str) -> Any:  # of a field that is asked for first; then it is an attribute
        if name.startswith("_") or name not in (self._plain.dtype.names or ()):
            raise AttributeError(name)
        column = self.__dict__[name] = self._plain[name]
        return column


_Arrays = namedtuple(
    "_Arrays",
    # records, by the plurals of their kinds
    "run jobs tasks workers gpus transfers links entries crossings covers hops paths steps filling slices samples "
    "foreseen "
    # plain arrays
    "successors members pending ready residents heap position end_ns arrivals queue waiting active work finished "
    "dormant running snapshots memory_classes room open_gpus touched_gpus touched_links due_links stale_links "
    "doubted_links fresh items keys key_notes scratch job_links path_links jitter penalties_ppm speeds",
)


class State(_Arrays):
    """All arrays of a run, and where compiled code finds them.

    ``transfers`` are those of a job's collectives and, where policies stop or move jobs, behind them as many for its
    state as it has GPUs, whose ``task`` is -1, -2 and so on.
    Of the plain arrays, ``successors`` holds task numbers within a job, ``members`` the workers, numbered within a job,
    that take part in a collective of a job whose workers do different things; ``pending`` and ``ready`` hold, for each
    worker and task, the predecessors still to end and whether the task is ready (of a job of groups only ``ready``, for
    each task once); ``heap`` and
    ``end_ns`` are the event heap, place by place, its items a GPU's number or the number of GPUs plus a
    transfer's, or both plus a job's that restarts or skips iterations, and ``position`` the place of each item or -1;
    ``memory_classes`` holds what jobs need on a GPU, ascending, each once; GPUs are counted by how many of them they
    have room for, in ``room`` as a binary indexed tree, and those with room for any are listed in ``open_gpus``;
    ``jitter`` holds the factors of compute times, or one that means none; ``penalties_ppm`` what a job of one kind
    (row) loses to one of another on its GPU, in millionths of its time, or nothing; ``speeds`` how many times as fast
    a job of one model (row) computes on a kind of GPU as its times say, or nothing; ``snapshots`` holds past states
    of components, and ``key_notes``, for each job, its two keys at the snapshot and now; ``keys`` holds the keys of
    what is being sorted or compared, ``KEY_WORDS`` numbers each; ``scratch`` the lists that a policy is given;
    ``job_links`` the links of each placed job's transfers, each once; ``path_links`` the links of one of ``paths``
    after the other; ``steps`` has a record for each link at level 0, then at level 1 and so on, ``filling`` one of
    where the filling stands, whose lists ``due_links``, a heap, and ``stale_links`` are; the others are lists whose
    lengths are in ``run``.
    """

    @cached_property
    def _headers(self) -> np.ndarray:
        """Of each array its address, length and width; compiled code needs no more of it."""
        return np.array([(array.ctypes.data, len(array), array.shape[-1]) for array in self], np.int64)

    @cached_property
    def address(self) -> int:
        """The address of the headers: all that a call hands over, as to take 51 arrays apart takes longer than most."""
        return int(self._headers.ctypes.data)

    def __getstate__(self) -> None:
        """Leave the address behind, which holds in this process alone."""


_IRREGULAR = {"run": "run", "entry": "entries", "filling": "filling", "foresight": "foreseen"}
_PLURALS = {_IRREGULAR.get(kind, f"{kind}s"): kind for kind in _INTEGERS}
_DTYPES = {"ready": np.uint8, "jitter": np.float64, "speeds": np.float64}
_TWO_DIMENSIONAL = ("residents", "penalties_ppm", "speeds")


def example_state() -> State:
    """Return a state of nothing, of the type that every state has."""
    arrays = {}
    for name in State._fields:
        if name in _PLURALS:
            arrays[name] = make_records(_PLURALS[name], 1)
        else:
            arrays[name] = np.zeros((1, 1) if name in _TWO_DIMENSIONAL else 1, _DTYPES.get(name, np.int64))
    return State(**arrays)
