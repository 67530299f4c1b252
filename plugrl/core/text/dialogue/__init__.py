"""Dialogues between a tester and a target: what red-teaming's trainers and scenario share."""
