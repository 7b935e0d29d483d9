"""Contention constants from measured all-reduces: reading them, fitting them, taking them between hosts."""
