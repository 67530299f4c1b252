"""Bubblewrap: programs run in containers that ordinary users may make."""
