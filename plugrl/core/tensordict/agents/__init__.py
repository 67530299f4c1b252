"""Agents: networks made of parts, and how they choose actions."""
