"""Bundles: a paper's scheduler under one name."""

from __future__ import annotations

ADA_SRSF = {"placement": "lwf:kappa=1", "order": "srsf", "communication": "adadual"}
"""Ada-SRSF of arXiv 2002.10105."""

SRSF_1 = {"placement": "lwf:kappa=1", "order": "srsf", "communication": "bounded-overlap:limit=1"}
"""SRSF(1): transfers never overlap."""

SRSF_2 = {"placement": "lwf:kappa=1", "order": "srsf", "communication": "bounded-overlap:limit=2"}
"""SRSF(2): two transfers may overlap."""

SRSF_3 = {"placement": "lwf:kappa=1", "order": "srsf", "communication": "bounded-overlap:limit=3"}
"""SRSF(3): three transfers may overlap."""

BLOCK_SRTF = {"placement": "blocks", "order": "srtf", "communication": "preemptive:by=time"}
"""Nested blocks of servers, GPUs to the shortest remaining compute, the network to the shortest remaining time."""
