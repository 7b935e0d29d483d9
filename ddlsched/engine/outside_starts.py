"""Runs whose jobs are started from outside of the loop and of the driver.

What starts a job in compiled code (``loop/start_steps.py``) writes no Python objects; here they are made of its arrays
whenever Python is to look.
"""

from __future__ import annotations

import numpy as np

from ddlsched.engine.outcome import Residency
from ddlsched.engine.records.layout import State
from ddlsched.engine.repeated_run import RepeatedRun, RunParts
from ddlsched.engine.run_state import RunState
from ddlsched.engine.settings import RunSettings
from ddlsched.errors import InputError
from ddlsched.policies.views import TransferView

__all__ = ["OutsideStarts"]


class OutsideStarts(RepeatedRun):
    """Starts jobs of a run.

    Raises
    ------
    InputError
        Jobs may also leave their GPUs, or a policy in Python would have to be asked between two starts of an instant.
    """

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self._placing, self._costs = parts.placing, parts.costs
        self._gpu_of_worker: np.ndarray = parts.state.arrays.workers.gpu
        refuse_stops(parts.state, parts.settings)

    def start(self, number: int, gpus: list[int]) -> State:
        """Start a job on GPUs, in placement order, and return the state, which may have had to grow."""
        self.note()
        self._placing.put(number, gpus, 0)
        return self._state.arrays

    def place(self, number: int) -> list[int] | None:
        """Ask the placement policy for the GPUs of a job."""
        self.note()
        return self._placing.place(number)

    def num_gpus(self, number: int) -> int:
        """Return how many GPUs a job needs."""
        return int(self._state.jobs.num_gpus.item(number))

    def note(self) -> None:
        """Make what Python looks at of the jobs that compiled code has started since."""
        state, jobs = self._state, self._state.jobs
        new = np.flatnonzero((jobs.start_ns >= 0) & (jobs.stay >= len(state.stays)))
        for number in new[np.argsort(jobs.stay[new])].tolist():
            self._note_start(number)

    def _note_start(self, number: int) -> None:
        state, view = self._state, self._state.views[number]
        first = state.jobs.first_worker.item(number)
        gpus = self._gpu_of_worker[first : first + view.num_gpus].tolist()
        servers = tuple(dict.fromkeys(state.server_of_gpu[gpu] for gpu in gpus))
        view._placed(tuple(gpus), servers)
        stay = Residency(number, tuple(gpus), {}, state.jobs.start_ns.item(number))
        planned = self._costs.planned(number, gpus, servers)
        for transfer, plan in enumerate(planned, state.jobs.first_transfer.item(number)):
            state.transfer_views[transfer] = TransferView(
                transfer, view, plan.links, state.transfers, transfer, state.now, plan.shares
            )
            stay.links_of[state.transfers.task.item(transfer)] = plan.links
        state.stays.append(stay)


def refuse_stops(state: RunState, settings: RunSettings) -> None:
    """Raise InputError if jobs may leave their GPUs before they end, or the order is asked in Python."""
    run = state.run
    why = ""
    if settings.disturbances.servers_fail or settings.capacity is not None:
        why = "servers come and go"
    elif run.asks_moves or hasattr(settings.order, "stops"):
        why = "jobs are stopped or moved"
    elif run.elastic:
        why = "jobs are elastic"
    elif run.order_ranked:
        why = "the order is asked in Python, or remembers what it was asked"
    elif settings.window is not None:
        why = "the run is recorded"
    if why:
        raise InputError(f"{why}; expected a run whose jobs start once, by an order that is compiled")
