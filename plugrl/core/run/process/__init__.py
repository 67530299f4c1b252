"""What a run needs of its process and its machine: threads, signals, memory, the setup script."""
