"""The flow scenario in SimGrid's Python interface, max-min sharing; run by the interpreter that has ``simgrid``.

Reads from stdin JSON {"iterations": I, "bandwidth": B, "flows": [[[server, ...], compute_s, wire_bytes], ...]} and
prints JSON {"finish_s": [...], "seconds": S}. Imports nothing of ddlsched: SimGrid's Debian package serves the
system's Python only. A job's ring is one flow over all its network cards, at exactly their bandwidth, without
latency; SimGrid takes whole bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import simgrid
from simgrid import Comm, Engine, Host, LinkInRoute, this_actor

# A flow gets all of a free link, and only sharing slows it: no TCP window, no latency or bandwidth corrections.
OPTIONS = (
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/crosstraffic:0",
    "--log=root.threshold:error",
)


class Job:
    """An actor that computes and sends, over and over."""

    def __init__(self, finish_s: list[float], number: int, receiver: Host, sizes: Sequence[Any]) -> None:
        self.finish_s, self.number, self.receiver = finish_s, number, receiver
        self.compute_s, self.wire_bytes, self.iterations = sizes

    def __call__(self) -> None:
        """Run the job to its end."""
        here = this_actor.get_host()
        for _ in range(self.iterations):
            this_actor.sleep_for(self.compute_s)
            Comm.sendto(here, self.receiver, self.wire_bytes)
        self.finish_s[self.number] = Engine.clock


def main() -> None:
    # Actors are threads that run one at a time; handing over from core to core makes them five times as slow.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    scenario = json.load(sys.stdin)
    begin = time.perf_counter()
    engine = Engine([sys.argv[0], *OPTIONS])
    zone = simgrid.NetZone.create_full_zone("cluster")
    links: dict[int, LinkInRoute] = {}
    finish_s = [0.0] * len(scenario["flows"])
    for number, (servers, compute_s, wire_bytes) in enumerate(scenario["flows"]):
        sender, receiver = zone.create_host(f"sender-{number}", 1e9), zone.create_host(f"receiver-{number}", 1e9)
        for server in servers:
            if server not in links:
                links[server] = LinkInRoute(zone.create_link(f"server-{server}", scenario["bandwidth"]).seal())
        zone.add_route(sender.netpoint, receiver.netpoint, None, None, [links[server] for server in servers], False)
        sizes = (compute_s, round(wire_bytes), scenario["iterations"])
        simgrid.Actor.create(f"job-{number}", sender, Job(finish_s, number, receiver, sizes))
    zone.seal()
    engine.run()
    print(json.dumps({"finish_s": finish_s, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
