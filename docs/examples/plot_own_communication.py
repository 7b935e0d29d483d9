"""
A communication policy of your own
==================================

Start a transfer only beside fewer than ``limit`` others, and only if it is smaller than what each
has left.
"""

import ddlsched

workload = ddlsched.microsoft_160(seed=1, scale=0.02)
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SmallerFirst:
    """Small transfers overtake large ones."""

    limit: int = 2

    def admit(self, transfer, network):
        met = network.met_by(transfer)
        return len(met) < self.limit and all(transfer.message_bytes <= other.bytes_left for other in met)


result = ddlsched.simulate(workload, communication=SmallerFirst(limit=3))
print(result)
figure = result.plot.phases()
