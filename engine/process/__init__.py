"""Runs in a process of their own: the host that waits, and the worker that measures."""
