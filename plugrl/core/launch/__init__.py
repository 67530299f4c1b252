"""Runs of this machine's configurations on other machines: what travels there, and who sends it."""
