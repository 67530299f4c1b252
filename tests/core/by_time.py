"""Estimators of steps whose arrays count time first, ``[T, N]``."""

import numpy as np
import torch


def by_time(estimator, *arrays, **options):
    """What an estimator of ``[N, T]`` tensors gives for arrays ``[T, N]``, again time first."""

    def turned(value):
        is_array = isinstance(value, np.ndarray)
        return torch.from_numpy(np.ascontiguousarray(value.T)) if is_array else value

    named = {name: turned(value) for name, value in options.items()}
    return estimator(*map(turned, arrays), **named).numpy().T
