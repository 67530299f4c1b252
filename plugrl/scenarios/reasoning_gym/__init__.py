"""Tasks of reasoning-gym: problems that are generated, and scores by each task's own rules."""
