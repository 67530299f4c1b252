"""Episodes of a protocol between language models, every token of which is kept as sampled."""
