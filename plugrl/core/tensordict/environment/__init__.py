"""Environments: copies stepped together as arrays, their state, and protocols as environments."""
