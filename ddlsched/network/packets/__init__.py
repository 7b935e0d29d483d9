"""Packets of rings, one by one, in compiled code; :mod:`ddlsched.network.packet_rings` asks it."""
