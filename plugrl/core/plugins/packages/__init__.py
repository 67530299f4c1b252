"""The installed packages: what they declare, require, ship and cost."""
