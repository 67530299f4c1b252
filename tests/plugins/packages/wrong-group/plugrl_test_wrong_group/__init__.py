"""A plugin whose groups are misspelt."""
