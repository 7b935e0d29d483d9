"""What environments of many runs have in common whose jobs are started by compiled code."""

from __future__ import annotations

from collections.abc import Callable

from ddlsched.engine.driver import Simulation
from ddlsched.engine.outside_starts import OutsideStarts
from ddlsched.engine.start_tables import no_tables, with_run
from ddlsched.envs.scheduling_env import SchedulingEnv
from ddlsched.envs.vector_env import SteppedVectorEnv

__all__ = ["StartVectorEnv"]


class StartVectorEnv(SteppedVectorEnv):
    """Many runs whose jobs start in compiled code.

    Jobs must not be stopped, moved or elastic, servers not fail, and the order must be one that is compiled.
    """

    def __init__(self, num_envs: int, make: Callable[[], SchedulingEnv]) -> None:
        super().__init__(num_envs, make)
        self._tables = no_tables(num_envs, self._envs[0].cluster.num_servers)

    def _adopt(self, number: int, simulation: Simulation) -> OutsideStarts:
        starts = OutsideStarts(simulation.parts)
        starts.remember()
        self._tables = with_run(self._tables, number, simulation.parts)
        return starts
