"""Models of the ``transformers`` library, sampled from and trained in this process."""
