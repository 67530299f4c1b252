"""The files of a run folder that grow while it trains, and what is read from them."""
