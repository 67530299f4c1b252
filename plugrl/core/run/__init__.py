"""One run: its folder, lock, checkpoints, metrics, guards, deadlines and end."""
