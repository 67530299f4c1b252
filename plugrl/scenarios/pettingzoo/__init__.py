"""Environments of several agents that follow PettingZoo's parallel interface."""
