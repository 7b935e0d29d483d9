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

from ddlsched.envs.scheduling_env import SchedulingEnv as SchedulingEnv
from ddlsched.envs.single_envs import AllocationEnv as AllocationEnv
from ddlsched.envs.single_envs import CommunicationEnv as CommunicationEnv
from ddlsched.envs.single_envs import OrderEnv as OrderEnv
from ddlsched.envs.single_envs import PlacementEnv as PlacementEnv
from ddlsched.envs.vector_env import SchedulingVectorEnv as SchedulingVectorEnv
from ddlsched.envs.vector_envs import AllocationVectorEnv as AllocationVectorEnv
from ddlsched.envs.vector_envs import CommunicationVectorEnv as CommunicationVectorEnv
from ddlsched.envs.vector_envs import OrderVectorEnv as OrderVectorEnv
from ddlsched.envs.vector_envs import PlacementVectorEnv as PlacementVectorEnv

for _name in ("Order", "Placement", "Communication", "Allocation"):
    if f"ddlsched/{_name}-v0" not in _gymnasium.registry:
        _gymnasium.register(
            id=f"ddlsched/{_name}-v0",
            entry_point=f"ddlsched.envs:{_name}Env",
            vector_entry_point=f"ddlsched.envs:{_name}VectorEnv",
        )
