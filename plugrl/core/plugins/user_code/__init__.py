"""Code of users: its files as modules, its functions as components, its errors by place."""
