"""From trajectories to the loss of an optimizer step."""
