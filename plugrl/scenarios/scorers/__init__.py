"""Scorers of dialogues that need no other software."""
