"""Process-wide matters of a run: threads, signals, memory, compilers, the setup script."""
