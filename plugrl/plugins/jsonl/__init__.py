"""Metrics, samples and configurations of several runs in one JSONL file."""
