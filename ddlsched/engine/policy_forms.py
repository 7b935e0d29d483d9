"""How each policy of a run is asked: compiled, by its address, or in Python; and which shortcuts that allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ddlsched.engine.compiled_forms import CompiledMethod, compile_method
from ddlsched.engine.decisions.checked_policies import communication_form
from ddlsched.engine.field_values import Communication, Contention, Door
from ddlsched.engine.native.jit import runs_in_python
from ddlsched.engine.records import Records
from ddlsched.errors import PluginError, label, say_once
from ddlsched.network.rates import contention_form, message_parts
from ddlsched.policies.compiling.source import CannotCompileError
from ddlsched.policies.promises import BYTES, CLOCK, FULLEST, PROGRESS, TELLING_APART, WIDE, promises

Kind = Literal["order", "communication", "contention", "path"]

DOORS: dict[Door, Kind] = {
    Door.ORDER: "order",
    Door.COMMUNICATION: "communication",
    Door.CONTENTION: "contention",
    Door.PATH: "path",
}


@dataclass(frozen=True)
class PolicyForm:
    """A policy's compiled methods by name, none if it is asked in Python, and the record of its fields."""

    policy: Any
    methods: dict[str, CompiledMethod] = field(default_factory=dict)
    record: np.ndarray | None = None

    @property
    def is_compiled(self) -> bool:
        """Whether the loop calls it."""
        return bool(self.methods)

    @property
    def has_memory(self) -> bool:
        """Whether an answer may depend on what was asked before."""
        return any(method.has_memory for method in self.methods.values())

    @property
    def reads(self) -> frozenset[str]:
        """What its methods may read."""
        return frozenset().union(*(method.program.reads for method in self.methods.values()))

    @property
    def fields_address(self) -> int:
        """Address of the record, or 0."""
        return 0 if self.record is None else int(self.record.ctypes.data)

    def promises(self, name: str) -> bool:
        """Return whether the policy's class makes a promise, and the loop calls it."""
        return self.is_compiled and promises(self.policy, name)


class PolicyForms:
    """The forms of a run's order, communication policy and contention model, and of a path policy.

    Parameters
    ----------
    order, communication, contention
        What is asked during the run.
    path
        What is asked whenever a transfer becomes ready; None if nothing is.
    in_python
        Those that are asked in Python, whatever they are.
    others
        The run's policies that are always asked in Python.
    predicted
        Whether policies see predicted lengths of jobs.

    Raises
    ------
    PluginError
        A class says ``compiled = True`` and cannot be compiled.
    """

    def __init__(
        self,
        order: Any,
        communication: Any,
        contention: Any,
        in_python: frozenset[Kind],
        others: tuple[Any, ...] = (),
        predicted: bool = False,
        path: Any = None,
    ) -> None:
        self._predicted = predicted
        asked = [id(policy) for policy in (order, communication, contention, path) if policy is not None]
        self._all_different = len({*asked}) == len(asked) and {*asked}.isdisjoint(map(id, others))
        self.communication_form = communication_form(communication)
        self.contention_form = contention_form(contention)
        self.order = self._form("order", order, ("key",), in_python)
        self.communication = self._form("communication", communication, (str(self.communication_form),), in_python)
        methods = ("weight", "level") if self.contention_form == "weight" else (str(self.contention_form),)
        self.contention = self._form("contention", contention, methods, in_python)
        self.path = PolicyForm(path) if path is None else self._form("path", path, ("path",), in_python)

    def _form(self, kind: Kind, policy: Any, methods: tuple[str, ...], in_python: frozenset[Kind]) -> PolicyForm:
        wanted = getattr(type(policy), "compiled", None)
        if kind in in_python or wanted is False or methods[0] in ("select", "rates"):
            return PolicyForm(policy)
        try:
            if hasattr(policy, "wake_s") and not hasattr(policy, "stops"):
                raise CannotCompileError(
                    f"{kind} {label(policy)}", "wake_s", "what asks to be woken is asked in Python"
                )
            compiled = {method: compile_method(policy, method, self._predicted) for method in methods}
            if hasattr(policy, "stops") and any(method.has_memory for method in compiled.values()):
                raise CannotCompileError(f"{kind} {label(policy)}", "stops", "would not see what the key remembers")
            if not self._all_different and any(method.program.fields.changeable for method in compiled.values()):
                raise CannotCompileError(f"{kind} {label(policy)}", "one object", "is asked through two doors")
        except CannotCompileError as reason:
            if runs_in_python():
                return PolicyForm(policy)
            if wanted is True:
                raise PluginError(f"{kind} {label(policy)}: compiled is True, but {reason}") from None
            _say_in_python(kind, policy, str(reason))
            return PolicyForm(policy)
        return PolicyForm(policy, compiled, next(iter(compiled.values())).program.fields.record())

    @property
    def all_compiled(self) -> bool:
        """Whether the loop never asks Python for an order, a transfer or a rate."""
        return all(form.is_compiled for form in self._forms())

    @property
    def have_memory(self) -> bool:
        """Whether an answer of one of them may depend on what it was asked before."""
        return any(form.has_memory for form in self._forms())

    def loop_asks_for_paths(self, recorded: bool, in_python: str) -> bool:
        """Return whether the loop asks a path policy itself; a line on stderr says why one that is compiled is not.

        Parameters
        ----------
        recorded
            Whether the links of each transfer are noted, in Python.
        in_python
            About which transfers it is asked in Python nevertheless, if any.
        """
        if not self.path.is_compiled:
            return False
        others = [label(form.policy) for form in self._forms() if not form.is_compiled]
        why = "the run is recorded, with the links of each transfer" if recorded else ""
        if others:  # it may look at the links of transfers
            why = f"{others[0]} is, too"
        if why or in_python:
            _say_in_python("path", self.path.policy, why or in_python)
        return not why

    def check_unchanged(self) -> None:
        """Check that what compiled methods took for constant during a run still is what it was.

        Raises
        ------
        PluginError
            Something else has changed it, which Python would have seen.
        """
        for kind in DOORS.values():
            form: PolicyForm = getattr(self, kind)
            for method in form.methods.values():
                if name := method.changed(form.policy):
                    raise PluginError(
                        f"{kind} {label(form.policy)}: {name} was changed during the run, from outside of the compiled "
                        "method that reads it; write compiled = False into the class"
                    )

    def _forms(self) -> Iterator[PolicyForm]:
        yield from (self.order, self.communication, self.contention)

    def write(self, run: Records, ask: Callable[[str, int, int], Any]) -> None:
        """Write down in a run's record how its policies are asked: where nothing is compiled, by ``ask``."""
        for form in (*self._forms(), self.path):
            for method in form.methods.values():
                if method.plain is not None:
                    method.plain.ask = ask
        self._write_order(run)
        self._write_communication(run)
        self._write_contention(run)
        if self.path.is_compiled:
            run.path_address, run.path_fields = self.path.methods["path"].address, self.path.fields_address

    def _write_order(self, run: Records) -> None:
        order = self.order
        run.key_words, run.order_ranked = 1, 1
        if order.is_compiled:
            method = order.methods["key"]
            run.order_address, run.order_fields = method.address, order.fields_address
            run.rank_words, run.order_ranked = method.words, order.has_memory
            run.key_words = 1 if order.has_memory else method.words
            run.key_is_stable = not (order.reads & CLOCK or order.has_memory)
            run.key_is_periodic = not order.reads & (PROGRESS | CLOCK)

    def _write_communication(self, run: Records) -> None:
        policy, admits = self.communication, self.communication_form == "admit"
        run.transfer_key_is_periodic = 1
        by_key = self.communication_form == "transfer_key"
        asked = Communication.ASKED_FOR_KEYS if by_key else Communication.ASKED_TO_SELECT
        run.communication = Communication.ASKED_TO_ADMIT if admits else asked
        if policy.is_compiled:
            (method,) = policy.methods.values()
            run.communication = Communication.ADMITS if admits else Communication.KEYS
            run.communication_address, run.communication_fields = method.address, policy.fields_address
            run.refusal_lasts = policy.promises("refusal_lasts") and not policy.has_memory
            run.refused_by_link = run.refusal_lasts and policy.reads <= FULLEST
            run.transfer_key_words = method.words
            run.transfer_key_is_periodic = admits or not policy.reads & (PROGRESS | CLOCK)

    def _write_contention(self, run: Records) -> None:
        model = self.contention
        run.per_byte_s, run.penalty_per_byte_s = model.policy.alone_per_byte_s, model.policy.penalty_per_byte_s
        asked = {"link_rate": Contention.ASKED_FOR_LINK_RATES, "weight": Contention.ASKED_FOR_SHARES}
        run.contention = asked.get(str(self.contention_form), Contention.ASKED_FOR_RATES)
        if model.is_compiled:
            shares = self.contention_form == "weight"
            run.contention = Contention.SHARES if shares else Contention.LINK_RATES
            run.rate_address = next(iter(model.methods.values())).address
            run.level_address = model.methods["level"].address if shares else 0
            run.contention_fields = model.fields_address
            run.weights_are_fixed = not (model.reads & (PROGRESS | BYTES) or model.has_memory)
        may_change = not model.is_compiled or model.reads & (PROGRESS | BYTES) or model.has_memory
        run.message_parts = message_parts(model.policy) if may_change else 1

    # --- shortcuts

    def hinders_skipping(self, overlaps: bool) -> str:
        """Return why some decision may depend on the instants at which a job that meets nobody sends; "" if none does.

        Parameters
        ----------
        overlaps
            Whether some job computes while it communicates: what it has left then falls while it sends or waits.
        """
        for form in self._forms():
            if not form.is_compiled or form.has_memory:
                return f"{label(form.policy)} {'remembers answers' if form.is_compiled else 'is asked in Python'}"
        return self._hinders_sending(overlaps)

    def _hinders_sending(self, overlaps: bool) -> str:
        """Return why what is sent, or how fast, may depend on when; "" if not: of compiled forms without a memory."""
        if read := self.contention.reads & (PROGRESS | BYTES | CLOCK):
            return _reads(self.contention, read)
        policy = self.communication
        if self.communication_form == "admit":
            return "" if policy.promises("refusal_lasts") else f"{label(policy.policy)} does not promise refusal_lasts"
        if read := policy.reads & (CLOCK | WIDE | (PROGRESS if overlaps else frozenset())):
            return _reads(policy, read)
        if (read := policy.reads & BYTES) and not policy.promises("key_falls_while_sending"):
            return _reads(policy, read) + " without the promise key_falls_while_sending"
        return ""

    def answers_alike(self) -> bool:
        """Return whether transfers that send as much, beside as many that are alike, get the same answer."""
        lasts = self.communication_form != "admit" or self.communication.promises("refusal_lasts")
        return lasts and self.communication.reads.isdisjoint(TELLING_APART)

    def hinders_jumping(self) -> str:
        """Return why what jobs that do meet decide may differ in each period; "" if it does not.

        To be asked if nothing hinders skipping.
        """
        if self.communication_form == "admit" and (read := self.communication.reads & (PROGRESS | CLOCK)):
            return _reads(self.communication, read)
        keys = [self.order, *([self.communication] if self.communication_form == "transfer_key" else [])]
        return next(filter(None, map(_changes, keys)), "")

    def may_leap_by_ranks(self) -> bool:
        """Return whether a sampled run may leap though its order is asked in Python, or remembers what it was asked.

        Nothing else may: transfers then go by the ranks that the order gave last, which count where links are full.
        """
        sending = (self.communication, self.contention)
        if self.communication_form != "admit" or self.communication.reads & (PROGRESS | CLOCK):
            return False
        return all(form.is_compiled and not form.has_memory for form in sending) and not self._hinders_sending(True)


def _changes(form: PolicyForm) -> str:
    """Return why a key may change from period to period by other amounts; "" if it does not."""
    if read := form.reads & CLOCK:
        return _reads(form, read)
    (method,) = form.methods.values()
    promised = form.promises("key_is_linear")
    if not (read := form.reads & PROGRESS) or (promised and method.whole_first):
        return ""
    return _reads(form, read) + (" in a first number not whole" if promised else " without the promise key_is_linear")


def _reads(form: PolicyForm, names: Iterable[str]) -> str:
    return f"{label(form.policy)} reads {', '.join(sorted(names))}"


def _say_in_python(kind: Kind, policy: Any, why: str) -> None:
    say_once(f"{kind} {label(policy)} is asked in Python, 10 to 50 times slower than compiled: {why}")
