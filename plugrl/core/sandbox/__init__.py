"""Runs untrusted programs with limits and without access to network, files or processes."""
