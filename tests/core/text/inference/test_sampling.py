"""Random numbers that depend on the request alone."""

import numpy as np
import pytest

from plugrl.core.text.inference.sampling import stream_seeds, uniforms

MASK = (1 << 64) - 1


def reference_mix(value):
    """SplitMix64's finalizer with Python's integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_the_published_sequence_of_splitmix64():
    # The first numbers from seed 1234567, as in the reference implementation's test vectors.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    seeds = np.array([1234567], dtype=np.uint64)
    got = [uniforms(seeds, i)[0] for i in range(3)]
    assert got == [(value >> 11) * 2.0**-53 for value in expected]


def test_seeds_by_hand():
    golden, seed = 0x9E3779B97F4A7C15, 0
    for coordinate in (7, -3, 5):
        seed = reference_mix(((seed ^ (coordinate & MASK)) + golden) & MASK)
    assert int(stream_seeds([(7, -3, 5)])[0]) == seed


def test_a_stream_does_not_depend_on_its_neighbours():
    streams = [(0, 1, item, run, 0) for item in range(20) for run in range(4)]
    together = uniforms(stream_seeds(streams), 3)
    alone = [uniforms(stream_seeds([stream]), 3)[0] for stream in streams]
    assert together.tolist() == alone


@pytest.mark.parametrize("coordinate", range(5))
def test_every_coordinate_matters(coordinate):
    base = [1, 2, 3, 4, 5]
    other = list(base)
    other[coordinate] += 1
    first, second = stream_seeds([tuple(base), tuple(other)])
    assert first != second


def test_numbers_are_uniform_over_streams_and_positions():
    seeds = stream_seeds([(0, step, item, 0, 0) for step in range(50) for item in range(50)])
    numbers = np.concatenate([uniforms(seeds, position) for position in range(8)])
    counts, _ = np.histogram(numbers, bins=100, range=(0, 1))
    expected = len(numbers) / 100
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 99 degrees of freedom: mean 99, deviation 14.1; five deviations.
    assert chi_square < 99 + 5 * 14.1
    assert len(set(numbers.tolist())) == len(numbers)
