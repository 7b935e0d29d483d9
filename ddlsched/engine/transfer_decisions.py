"""Starts, stops and rates transfers as a communication policy or contention model in Python says."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddlsched.engine.decisions.checked_policies import CheckedPolicies, choose_transfers
from ddlsched.engine.field_values import Contention
from ddlsched.engine.loop.from_python import (
    flows_on,
    gather_transfers,
    jobs_on,
    list_component,
    pause_transfer,
    share_anew,
    start_transfer,
)
from ddlsched.engine.loop.rates import apply_rates
from ddlsched.engine.native.jit import runs_in_python
from ddlsched.engine.run_state import RunState
from ddlsched.network.contention import ContentionModel, SharedLink
from ddlsched.network.rates import counted_weight
from ddlsched.policies.views import FlowView, LinkLoads, NetworkView, TransferView


class TransferDecisions:
    """Carries out what the policy and the model of a run answer about its transfers.

    Parameters
    ----------
    state, policies, contention
        The run, its policies, and its contention model.
    """

    def __init__(self, state: RunState, policies: CheckedPolicies, contention: ContentionModel) -> None:
        self._state, self._policies, self._contention = state, policies, contention
        self._view = self._view_now if runs_in_python() else state.transfer_views.__getitem__

    def choose(self) -> None:
        """Ask which of the ready transfers run."""
        arrays = self._state.arrays
        numbers = arrays.items[: gather_transfers(arrays)]
        if self._policies.communication_form == "transfer_key":  # in which the order has no say
            numbers = np.sort(numbers)
        choose_transfers(self._policies, self._views(numbers), self)

    def start(self, transfer: TransferView) -> None:
        """Let a transfer send."""
        start_transfer(self._state.arrays, transfer.number)

    def pause(self, transfer: TransferView) -> None:
        """Let a transfer wait."""
        pause_transfer(self._state.arrays, transfer.number)

    def rate(self) -> None:
        """Ask how fast transfers go."""
        asked = {
            Contention.ASKED_FOR_LINK_RATES: self._rate_on_links,
            Contention.ASKED_FOR_SHARES: self._share,
            Contention.ASKED_FOR_RATES: self._rate_all,
        }
        asked[Contention(self._state.now.contention.item(0))]()

    def _rate_all(self) -> None:
        state = self._state
        numbers = np.sort(state.arrays.active[: state.now.num_active.item(0)])
        waiting = sorted(self._waiting(), key=lambda transfer: transfer.number)
        rates = self._policies.rates(self._views(numbers), waiting, state.network.links, state.now_s)
        apply_rates(state.arrays, numbers, rates)

    def _rate_on_links(self) -> None:
        """Rate the transfers on links whose transfers have changed."""
        state, now_s = self._state, self._state.now_s
        touched = set(state.arrays.touched_links[: state.now.num_touched_links.item(0)].tolist())
        concerned = [transfer for transfer in self._active() if not touched.isdisjoint(transfer.links)]
        concerned.sort(key=lambda transfer: transfer.number)
        rates = [
            min(
                self._policies.link_rate(transfer, self._link(link), now_s) / share
                for link, share in zip(transfer.links, transfer.shares, strict=True)
            )
            for transfer in concerned
        ]
        numbers = np.array([transfer.number for transfer in concerned], np.int64)
        apply_rates(state.arrays, numbers, np.array(rates, np.float64))

    def _link(self, number: int) -> SharedLink:
        link, count = self._state.network.links[number], self._state.links.count.item(number)
        return SharedLink(number, count, link.relative_bandwidth, link.bandwidth_bytes_per_s)

    def _share(self) -> None:
        """Ask the weights and levels of the transfers that a change can reach, and let the loop share."""
        state = self._state
        numbers = np.sort(state.arrays.items[: list_component(state.arrays)])
        weights, levels = self._policies.shares(self._views(numbers), state.now_s)
        share_anew(state.arrays, numbers, counted_weight(weights), np.array(levels, np.int64))

    def ask(self, method: str, number: int, place: int) -> Any:
        """Ask what the loop asks where nothing is compiled, of a job or a transfer, and of the link at a place."""
        policies, now_s = self._policies, self._state.now_s
        if method == "key":
            return policies.key(self._state.views[number], now_s)
        if method == "path":
            return policies.choose_path(*self._hop(number))
        transfer = self._view(number)
        if method == "link_rate":
            return policies.link_rate(transfer, self._link(place), now_s)
        if method in ("weight", "level"):
            (weight,), (level,) = policies.shares([transfer], now_s)
            return counted_weight(weight) if method == "weight" else level
        return getattr(policies, method)(transfer, self.network())

    def _hop(self, number: int) -> tuple[FlowView, LinkLoads]:
        """Return what a path policy sees of a hop as the loop has it."""
        state, arrays = self._state, self._state.arrays
        hop = arrays.hops[number]
        offered = arrays.paths[hop.first_path : hop.first_path + hop.num_paths]
        paths = [tuple(arrays.path_links[path.first_link :][: path.num_links].tolist()) for path in offered]
        flow = FlowView(hop.place, state.views[hop.job], hop.source, hop.target, paths, hop.route)
        on = (lambda link: jobs_on(arrays, link)), (lambda link: flows_on(arrays, link))
        return flow, LinkLoads(state.network.links, *on, state.now_ns)

    def _view_now(self, number: int) -> TransferView:
        """Return the view of a transfer as the loop has it, which may place it now, or let it stand for others."""
        state, record = self._state, self._state.arrays.transfers[number]
        entries = state.arrays.entries[record.first_entry : record.first_entry + record.num_entries]
        links, known = tuple(entries.link.tolist()), state.transfer_views.get(number)
        if known is None or (known.links, known.message_bytes) != (links, record.bytes):
            job, shares = state.views[record.job], tuple(entries.share.tolist())
            known = TransferView(number, job, links, state.transfers, number, state.now, shares)
            state.transfer_views[number] = known
        return known

    def _views(self, numbers: np.ndarray) -> list[TransferView]:
        return list(map(self._view, numbers.tolist()))

    def _active(self) -> list[TransferView]:
        return self._views(self._state.arrays.active[: self._state.now.num_active.item(0)])

    def _waiting(self) -> list[TransferView]:
        return self._views(self._state.arrays.waiting[: self._state.now.num_waiting.item(0)])

    def network(self) -> NetworkView:
        """Return what a communication policy sees of the network now."""
        return NetworkView(
            self._state.network.links,
            self._state.links.count,
            self._active,
            self._waiting,
            self._contention.alone_per_byte_s,
            self._contention.penalty_per_byte_s,
            self._state.now_ns,
        )
