"""Batches as a train service gets them, for several tests."""

from plugrl.core.text.batch import Batch
from plugrl.core.text.learn.losses import LOSS_WEIGHTS
from plugrl.core.text.learn.step import aggregation_weights
from plugrl.core.text.trajectory import Trajectory

#: Sequences of different lengths, all of which but the first token is trained.
SEQUENCES = [[2, 3, 4, 5, 1], [6, 7, 1], [3, 2, 8, 1], [5, 1]]
TRAINED = [(tokens, [0] + [1] * (len(tokens) - 1)) for tokens in SEQUENCES]


def weighted(rows=TRAINED, temperature=1.0):
    """A batch of rows of tokens and masks; its loss is the mean over trained tokens."""
    made = Batch.from_trajectories([Trajectory(*row) for row in rows], temperature=temperature)
    made.values[LOSS_WEIGHTS] = aggregation_weights(made.values["loss_mask"], "token-mean")
    return made
