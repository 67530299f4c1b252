"""Pictures with two labels, about which agents point at places to one another."""
