"""Asking a model: services, sampling parameters, chat templates and what ends an answer."""
