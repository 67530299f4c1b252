"""Trackers: where metrics and samples go besides the files of the run folder."""
