"""What Python calls of functions that compiled code calls too.

They are compiled here once more, for Python alone: so the loop, which nearly every run needs, is compiled without what
only a call from Python needs.
"""

from __future__ import annotations

from ddlsched.engine.loop import admission, advance, failures, order, rates, transfers
from ddlsched.engine.loop.skipping import dormancy, foreseen
from ddlsched.engine.native.jit import NUMBER, REAL, STATE, called_from_python
from ddlsched.engine.records.layout import State

gather_transfers = called_from_python(STATE)(admission.gather_transfers)
start_transfer = called_from_python(STATE, NUMBER)(transfers.start_transfer)
pause_transfer = called_from_python(STATE, NUMBER)(transfers.pause_transfer)
gather_rivals = called_from_python(STATE)(order.gather_rivals)
rank_rivals = called_from_python(STATE)(order.rank_rivals)
sort_queue = called_from_python(STATE)(order.sort_queue)
list_component = called_from_python(STATE)(rates.list_component)
change_share = called_from_python(STATE, NUMBER, REAL, NUMBER)(rates.change_share)
rerate_max_min = called_from_python(STATE)(rates.rerate_max_min)
take_sample = called_from_python(STATE, NUMBER)(foreseen.take_sample)
take_samples = called_from_python(STATE, NUMBER)(foreseen.take_samples)
stop_job = called_from_python(STATE, NUMBER, NUMBER)(failures.stop_job)
most_slices = called_from_python(STATE)(advance.most_slices)


@called_from_python(STATE, NUMBER)
def wake(s: State, number: int) -> None:  # compiled code has only its address
    dormancy.wake(s, number)
