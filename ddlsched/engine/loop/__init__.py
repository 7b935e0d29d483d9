"""The compiled event loop, one subject a module."""
