"""How much of their quotas queues use, what they may still take, and how much of others' they hold.

A queue keeps for itself what it does not lend; the rest of its quota, and what its jobs use beyond what it keeps,
counts in its parent, and so on to the root. All amounts are whole GPUs of a kind.

References
----------
The semantics are those of Kueue's hierarchical cohorts (keps/79-hierarchical-cohorts) and of its fair sharing
(keps/1714-fair-sharing).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from ddlsched.cluster.tenants import Queue, Quota, Tenants

_NONE = Quota()


class QuotaNode:
    """A queue, or a group of queues, and what it uses.

    Attributes
    ----------
    queue, parent, children
        What it is, above and below.
    quota
        GPUs by kind that count here: its own, and those that its children lend.
    used
        GPUs by kind that count here: of a queue its jobs', of a group what its children use beyond what they keep.
    height
        How many groups lie on the longest way from it down to a queue, with it; 0 of a queue.
    """

    __slots__ = ("_leaves", "children", "height", "kept", "name", "parent", "queue", "quota", "used")

    def __init__(self, queue: Queue) -> None:
        self.queue, self.name = queue, queue.name
        self.parent: QuotaNode | None = None
        self.children: list[QuotaNode] = []
        self._leaves: tuple[QuotaNode, ...] = ()
        self.height = 0
        self.quota: dict[str, int] = {}
        self.kept: dict[str, int] = {}
        """What it lends to nobody, by kind."""
        self.used: dict[str, int] = defaultdict(int)

    def __repr__(self) -> str:
        return f"<queue {self.name}: uses {dict(self.used)} of {self.quota}>"

    def sum_up(self) -> None:
        """Reckon the quotas of it and of all below."""
        self.quota = {kind: quota.gpus for kind, quota in self.queue.quotas.items()}
        for child in self.children:
            child.sum_up()
            self.height = max(self.height, 1 + child.height)
            self._leaves += child.leaves()
            for kind, gpus in child.quota.items():
                self.quota[kind] = self.quota.get(kind, 0) + gpus - child.kept.get(kind, 0)
        limits = {kind: quota.lending_limit for kind, quota in self.queue.quotas.items()}
        self.kept = {kind: max(0, self.quota[kind] - lent) for kind, lent in limits.items() if lent is not None}

    @property
    def is_leaf(self) -> bool:
        """Whether jobs are submitted to it."""
        return not self.children

    @property
    def root(self) -> QuotaNode:
        """The top of its tree."""
        return self if self.parent is None else self.parent.root

    def above(self) -> Iterator[QuotaNode]:
        """Yield its parent, and so on to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def leaves(self) -> tuple[QuotaNode, ...]:
        """Return the queues that it holds, or itself."""
        return self._leaves or (self,)

    # --- amounts

    def own(self, kind: str) -> Quota:
        """Return its own quota of a kind."""
        return self.queue.quotas.get(kind, _NONE)

    def free_here(self, kind: str) -> int:
        """Return what is free of what it keeps for itself."""
        return max(0, self.kept.get(kind, 0) - self.used[kind])

    def available(self, kind: str) -> int:
        """Return how many GPUs more it may use now; below 0 if it uses more than it may."""
        if self.parent is None:
            return self.quota.get(kind, 0) - self.used[kind]
        from_above, limit = self.parent.available(kind), self.own(kind).borrowing_limit
        if limit is not None:
            kept = self.kept.get(kind, 0)
            lent = self.quota.get(kind, 0) - kept
            from_above = min(from_above, lent - max(0, self.used[kind] - kept) + limit)
        return self.free_here(kind) + from_above

    def most(self, kind: str) -> int:
        """Return how many GPUs it could use if nobody used any."""
        if self.parent is None:
            return self.quota.get(kind, 0)
        most, limit = self.kept.get(kind, 0) + self.parent.most(kind), self.own(kind).borrowing_limit
        return most if limit is None else min(most, self.quota.get(kind, 0) + limit)

    def lacks(self, kind: str, gpus: int = 0) -> bool:
        """Return whether it uses more than its quota, with so many GPUs more."""
        return self.used[kind] + gpus > self.quota.get(kind, 0)

    def borrowed(self, kind: str) -> int:
        """Return how many GPUs it uses beyond its quota."""
        return max(0, self.used[kind] - self.quota.get(kind, 0))

    def above_limit(self, kind: str) -> bool:
        """Return whether it uses more than its quota and what it may borrow."""
        limit = self.own(kind).borrowing_limit
        return self.parent is not None and limit is not None and self.borrowed(kind) > limit

    def add(self, kind: str, gpus: int) -> None:
        """Count GPUs that its jobs use, here and above."""
        beyond = gpus - self.free_here(kind)
        self.used[kind] += gpus
        if self.parent is not None and beyond > 0:
            self.parent.add(kind, beyond)

    def remove(self, kind: str, gpus: int) -> None:
        """Take back what :meth:`add` counted."""
        counted_above = self.used[kind] - self.kept.get(kind, 0)
        self.used[kind] -= gpus
        if self.parent is not None and counted_above > 0:
            self.parent.remove(kind, min(gpus, counted_above))


class QuotaTree:
    """The queues of a run and what they use.

    Parameters
    ----------
    tenants
        The queues.
    resource_of
        What a kind is a kind of: amounts of one resource are added up in shares. By default all are GPUs.
    """

    def __init__(self, tenants: Tenants, resource_of: Callable[[str], str] = lambda _: "GPU") -> None:
        self.tenants = tenants
        self.kinds = tenants.kinds
        self._resource_of = resource_of
        self.nodes = {queue.name: QuotaNode(queue) for queue in tenants.queues}
        for node in self.nodes.values():
            if node.queue.parent is not None:
                node.parent = self.nodes[node.queue.parent]
                node.parent.children.append(node)
        self.roots = [node for node in self.nodes.values() if node.parent is None]
        for root in self.roots:
            root.sum_up()
        self.leaves = [self.nodes[name] for name in tenants.leaves]
        self._lendable: dict[str, dict[str, int]] = {}

    def __getitem__(self, name: str) -> QuotaNode:
        return self.nodes[name]

    def share(self, node: QuotaNode) -> tuple[bool, float]:
        """Return the dominant share of what a queue has borrowed, so that shares can be compared.

        It is, of the resource of which it is the most, what the queue uses beyond its quota / what its parent could
        lend, / the weight. One that borrows with a weight of 0 has more than any other: first whether it does.
        """
        if node.parent is None:
            return False, 0.0
        borrowed: dict[str, int] = defaultdict(int)
        for kind in node.quota:
            borrowed[self._resource_of(kind)] += node.borrowed(kind)
        lendable = self._could_lend(node.parent)
        ratio = max((gpus / lendable[name] for name, gpus in borrowed.items() if lendable.get(name)), default=0.0)
        weight = node.queue.weight
        return ratio > 0 and not weight, ratio / (weight or 1.0)

    def borrows(self, node: QuotaNode) -> bool:
        """Return whether a queue or group uses more than its quota of any kind."""
        return node.parent is not None and any(node.used[kind] > gpus for kind, gpus in node.quota.items())

    def _could_lend(self, node: QuotaNode) -> dict[str, int]:
        """Return of each resource how much a group could use if nobody used any."""
        if node.name not in self._lendable:
            found: dict[str, int] = defaultdict(int)
            for kind in node.root.quota:
                found[self._resource_of(kind)] += node.most(kind)
            self._lendable[node.name] = found
        return self._lendable[node.name]
