"""What runs beside a program and in its process; the standard library alone, and no torch."""
