"""When rollouts begin, what waits for training, and when weights move."""
