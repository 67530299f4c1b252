"""What nested dictionaries of arrays are made of."""
