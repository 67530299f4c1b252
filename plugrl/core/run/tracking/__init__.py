"""Trackers: send metrics and samples to other places than the run folder."""
