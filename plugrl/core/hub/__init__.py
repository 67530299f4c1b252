"""Hubs, where models and data sets are published, and revisions of what a run takes from them."""
