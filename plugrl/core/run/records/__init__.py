"""The files of a run folder that grow during training, and views of them."""
