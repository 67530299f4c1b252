"""Built-in parsers of replies, one file each."""
