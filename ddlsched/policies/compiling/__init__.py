"""How a policy's class becomes compiled code: its source is found, checked, and rewritten to compute as Python does.

Nothing here knows the engine: what views are in compiled code is said in :mod:`ddlsched.engine.compiled_views`.
"""
