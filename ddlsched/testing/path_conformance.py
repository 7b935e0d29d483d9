"""The conformance class of path policies. Subclass it and give it ``make``."""

from __future__ import annotations

from typing import Any

from ddlsched.cluster.cluster import Cluster
from ddlsched.engine.records.field_values import TransferState
from ddlsched.simulation import simulate
from ddlsched.testing.conformance_runs import SEEDS, Conformance, begun, finishes_of
from ddlsched.testing.examples import example_workload, python_form
from ddlsched.testing.handmade import flow_view, job_view, link_loads

__all__ = ["PathConformance"]

_CLUSTER = Cluster(num_servers=8, gpus_per_server=2, topology="leaf-spine:servers_per_leaf=2,spines=3")


class PathConformance(Conformance):
    """Checks of a path policy."""

    def test_takes_the_only_path(self) -> None:
        """Inside a leaf there is one, without a link between switches."""
        policy = begun(self.make())
        answer = policy.path(flow_view(job_view(num_gpus=2, servers=(0, 1)), [()]), link_loads())
        assert answer == 0, f"path: answered {answer!r} of 1 paths; expected 0"

    def test_answers_a_path(self) -> None:
        """Whatever is on the links."""
        policy = begun(self.make())
        for number, servers in enumerate([(0, 1), (1, 3), (7, 2)]):
            job = job_view(number=number, num_gpus=2, servers=servers)
            flow = flow_view(job, [(0,), (1, 2), (3,)], source=servers[0], target=servers[1], route=1)
            for loads in (link_loads(), link_loads(jobs={0: 2, 2: 1}), link_loads(flows={1: 7}, jobs={1: 1})):
                answer = policy.path(flow, loads)
                assert answer in range(3), f"path: answered {answer!r} of 3 paths; expected 0, 1 or 2"

    def test_runs_alike(self) -> None:
        """Every job finishes; the same seed gives the same run."""
        for seed in SEEDS:
            results = [simulate(example_workload(seed), _CLUSTER, path=self.make(), seed=seed) for _ in range(2)]
            assert all(finish > 0 for finish in finishes_of(results[0])), "every job finishes"
            assert finishes_of(results[0]) == finishes_of(results[1]), "the same seed gives the same run"

    def test_compiled_it_decides_as_in_python(self) -> None:
        """Where it is asked for each transfer; otherwise it is asked in Python alone."""
        policy = begun(self.make())
        if getattr(policy, "chosen", "placement") == "transfer" and getattr(policy, "compiled", None) is not False:
            for seed in SEEDS:
                forms: list[Any] = [self.make(), python_form(self.make())]
                results = [simulate(example_workload(seed), _CLUSTER, path=form, seed=seed) for form in forms]
                assert finishes_of(results[0]) == finishes_of(results[1]), "both forms agree"

    def test_every_link_carries_what_is_sent_over_it(self) -> None:
        """On each tier as many bytes go up as come down, and no link carries more than it can."""
        result = simulate(example_workload(0), _CLUSTER, path=self.make())
        state = result.finished.state
        assert (state.transfers.state == TransferState.IDLE).all()
        links = result.links
        up = links["bytes"][links["link"].str.startswith("leaf")].sum()
        down = links["bytes"][links["link"].str.startswith("spine")].sum()
        assert abs(up - down) <= 1e-9 * up
        assert (links["utilisation"] <= 1 + 1e-9).all()
