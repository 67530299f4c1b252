"""Losses of policies that are small networks: modules that map the rows of a batch to losses."""
