"""Built-in advantages, one file each."""
