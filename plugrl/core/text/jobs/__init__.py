"""Fine-tuning jobs: what a service is asked for that trains a model on examples, as a whole."""
