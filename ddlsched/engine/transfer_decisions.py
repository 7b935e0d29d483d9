"""Starts, stops and rates transfers as a communication policy or contention model in Python says."""

from __future__ import annotations

import numpy as np

from ddlsched.engine.checked_policies import Asker
from ddlsched.engine.loop.admission import gather_transfers
from ddlsched.engine.loop.sharing import apply_rates
from ddlsched.engine.loop.transfers import pause_transfer, start_transfer
from ddlsched.engine.run_state import RunState
from ddlsched.network.contention import ContentionModel
from ddlsched.policies.compiled import CommunicationRule
from ddlsched.policies.views import NetworkView, TransferView

__all__ = ["Sending"]


class Sending:
    """Carries out what the policy and the model of a run answer about its transfers."""

    def __init__(self, state: RunState, asker: Asker, contention: ContentionModel) -> None:
        self._state, self._asker, self._contention = state, asker, contention

    def choose(self) -> None:
        """Ask which of the ready transfers run."""
        state = self._state
        count = gather_transfers(state.arrays)
        candidates = self._views(state.arrays.items[:count])
        network = self._network()
        if state.now.communication_rule.item(0) == CommunicationRule.PYTHON_ADMIT:
            for transfer in candidates:
                if self._asker.admit(transfer, network):
                    start_transfer(state.arrays, transfer.number)
                    network = self._network()
        elif candidates:
            self._switch(candidates, self._asker.select(candidates, network))

    def _switch(self, candidates: list[TransferView], selected: set[int]) -> None:
        for transfer in candidates:
            if transfer.is_active and transfer.number not in selected:
                pause_transfer(self._state.arrays, transfer.number)
            elif transfer.number in selected and not transfer.is_active:
                start_transfer(self._state.arrays, transfer.number)

    def rate(self) -> None:
        """Ask how fast the active transfers go."""
        state = self._state
        numbers = state.arrays.active[: state.now.num_active.item(0)]
        by_number = np.argsort(numbers)
        active = self._views(numbers[by_number])
        waiting = sorted(self._waiting(), key=lambda transfer: transfer.number)
        rates = np.empty(len(numbers))
        rates[by_number] = self._asker.rates(active, waiting, state.network.links, state.now_s)
        apply_rates(state.arrays, rates)

    def _views(self, numbers: np.ndarray) -> list[TransferView]:
        return [self._state.transfer_views[number] for number in numbers.tolist()]

    def _active(self) -> list[TransferView]:
        return self._views(self._state.arrays.active[: self._state.now.num_active.item(0)])

    def _waiting(self) -> list[TransferView]:
        return self._views(self._state.arrays.waiting[: self._state.now.num_waiting.item(0)])

    def _network(self) -> NetworkView:
        return NetworkView(
            self._state.network.links,
            self._state.links.count,
            self._active,
            self._waiting,
            self._contention.alone_per_byte_s,
            self._contention.penalty_per_byte_s,
            self._state.now_ns,
        )
