"""Checkpoints: what they contain, when they are saved, and how they are read."""
