"""Training by a service behind a network."""
