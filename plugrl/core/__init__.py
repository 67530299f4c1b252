"""Contracts and machinery. Nothing in here knows an algorithm, a task or a vendor."""
