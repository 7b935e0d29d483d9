"""How a policy's class becomes compiled code: its source found, checked and rewritten so that it computes as Python does.

Nothing here knows the engine: what views are in compiled code is said in :mod:`ddlsched.engine.compiled`.
"""
