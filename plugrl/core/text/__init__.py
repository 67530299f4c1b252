"""The text world: trajectories of tokens, rollouts, services and the trainers over them."""
