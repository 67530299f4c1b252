"""Prompts: read from files or a scenario, in an order that a seed and a position determine."""
