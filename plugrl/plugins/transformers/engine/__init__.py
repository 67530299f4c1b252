"""The embedded engine: batches of requests decoded token by token."""
