"""Algorithms of red-teaming: from rollout trees to a loss for the tester."""
