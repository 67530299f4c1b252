"""Agents: conversations of several turns with tools, recorded token by token."""
