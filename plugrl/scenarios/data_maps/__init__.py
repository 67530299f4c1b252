"""Maps from rows of published data sets to problems, for `data.map`."""
