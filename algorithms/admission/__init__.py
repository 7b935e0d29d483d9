"""Who of the tenants' jobs may start, and who gives way."""
