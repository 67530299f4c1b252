"""One of two plugins with one name."""
