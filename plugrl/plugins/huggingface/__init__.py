"""The Hugging Face hub: models and data sets by name, through its own client."""
