"""What makes attempts over the endpoint: programs and functions."""
