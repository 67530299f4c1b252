"""Configurations: composed with the origin of every value, checked in one report, viewed."""
