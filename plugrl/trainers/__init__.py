"""Built-in training algorithms, one file each."""
