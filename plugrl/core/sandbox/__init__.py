"""Programs that nobody has read, run with limits and without network, files or processes."""
