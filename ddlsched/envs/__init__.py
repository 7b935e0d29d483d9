"""Gymnasium environments: the simulator stepped from decision to decision (``docs/learning.md``).

Needs ``pip install 'ddlsched[envs]'``. Importing registers ``ddlsched/Order-v0``, ``ddlsched/Placement-v0``,
``ddlsched/Communication-v0`` and ``ddlsched/Allocation-v0``.
"""

from __future__ import annotations

from ddlsched.errors import InputError

try:
    import greenlet as _greenlet  # noqa: F401
    import gymnasium as _gymnasium
except ImportError:
    raise InputError("environments need Gymnasium and greenlet; expected pip install 'ddlsched[envs]'") from None

from ddlsched.envs.scheduling_env import SchedulingEnv
from ddlsched.envs.single_envs import AllocationEnv, CommunicationEnv, OrderEnv, PlacementEnv
from ddlsched.envs.vector_env import SchedulingVectorEnv
from ddlsched.envs.vector_envs import AllocationVectorEnv, CommunicationVectorEnv, OrderVectorEnv, PlacementVectorEnv

__all__ = [
    "AllocationEnv",
    "AllocationVectorEnv",
    "CommunicationEnv",
    "CommunicationVectorEnv",
    "OrderEnv",
    "OrderVectorEnv",
    "PlacementEnv",
    "PlacementVectorEnv",
    "SchedulingEnv",
    "SchedulingVectorEnv",
]

for _name in ("Order", "Placement", "Communication", "Allocation"):
    if f"ddlsched/{_name}-v0" not in _gymnasium.registry:
        _gymnasium.register(
            id=f"ddlsched/{_name}-v0",
            entry_point=f"ddlsched.envs:{_name}Env",
            vector_entry_point=f"ddlsched.envs:{_name}VectorEnv",
        )
