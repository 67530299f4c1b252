"""The other of two plugins with one name."""
