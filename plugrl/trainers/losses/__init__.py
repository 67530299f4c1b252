"""Built-in losses, one file each."""
