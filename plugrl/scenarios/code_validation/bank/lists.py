"""Problems about lists."""

from __future__ import annotations

from plugrl.scenarios.code_validation.problem import Problem

LISTS = (
    Problem(
        name="second_largest",
        question=(
            "Give the second largest of the different values of a list of whole numbers, or None "
            "if it has fewer than two."
        ),
        draws=("ints -5 5 0 6",),
        examples=((([3, 9, 9, 4],), 4), (([7, 7],), None)),
        inputs=(([],), ([1],), ([1, 2],), ([2, 1],), ([-1, -2, -3],)),
        solutions=(
            """
def second_largest(values):
    largest = None
    second = None
    for value in values:
        if largest is None or value > largest:
            second = largest
            largest = value
        elif value < largest and (second is None or value > second):
            second = value
    return second
""",
            """
def second_largest(values):
    different = sorted(set(values))
    if len(different) < 2:
        return None
    return different[-2]
""",
        ),
    ),
    Problem(
        name="running_sums",
        question="Give the list of the sums of the first 1, 2, 3 and so on numbers of a list.",
        draws=("ints -9 9 0 6",),
        examples=((([1, 2, 3],), [1, 3, 6]), (([],), [])),
        inputs=(([5],), ([0, 0],), ([-1, 1],)),
        solutions=(
            """
def running_sums(values):
    total = 0
    sums = []
    for value in values:
        total += value
        sums.append(total)
    return sums
""",
            """
def running_sums(values):
    return [sum(values[:count + 1]) for count in range(len(values))]
""",
        ),
    ),
    Problem(
        name="rotated",
        question=(
            "Move each number of a list k places to the right; what falls off the end comes in "
            "at the front. k is at least 0 and may exceed the length."
        ),
        draws=("ints 0 9 0 5", "int 0 8"),
        examples=((([1, 2, 3, 4], 1), [4, 1, 2, 3]), (([], 3), [])),
        inputs=(([1, 2], 0), ([1, 2], 2), ([1, 2], 3), ([1], 5)),
        solutions=(
            """
def rotated(values, k):
    if len(values) == 0:
        return []
    k = k % len(values)
    return values[len(values) - k:] + values[:len(values) - k]
""",
            """
def rotated(values, k):
    result = list(values)
    for place in range(len(values)):
        result[(place + k) % len(values)] = values[place]
    return result
""",
        ),
    ),
    Problem(
        name="without_repeats",
        question="Give the values of a list without those that have come before, in order.",
        draws=("ints 0 4 0 8",),
        examples=((([3, 1, 3, 2, 1],), [3, 1, 2]), (([],), [])),
        inputs=(([1],), ([1, 1],), ([0, 1, 0],)),
        solutions=(
            """
def without_repeats(values):
    kept = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept
""",
            """
def without_repeats(values):
    return [values[i] for i in range(len(values)) if values[i] not in values[:i]]
""",
        ),
    ),
    Problem(
        name="merged",
        question="Give the numbers of two lists in ascending order; each list already is.",
        draws=("sorted ints 0 9 0 5", "sorted ints 0 9 0 5"),
        examples=((([1, 4], [2, 3, 5]), [1, 2, 3, 4, 5]), (([], []), [])),
        inputs=(([], [1]), ([1], []), ([1, 1], [1]), ([5], [1, 2])),
        solutions=(
            """
def merged(a, b):
    result = []
    i = 0
    j = 0
    while i < len(a) and j < len(b):
        if a[i] <= b[j]:
            result.append(a[i])
            i += 1
        else:
            result.append(b[j])
            j += 1
    return result + a[i:] + b[j:]
""",
            """
def merged(a, b):
    result = list(a)
    for value in b:
        place = 0
        while place < len(result) and result[place] < value:
            place += 1
        result.insert(place, value)
    return result
""",
        ),
    ),
    Problem(
        name="pieces",
        question=(
            "Cut a list into pieces of size numbers, a whole number of at least 1; the last piece "
            "may be shorter. Give the list of pieces."
        ),
        draws=("ints 0 9 0 7", "int 1 4"),
        examples=((([1, 2, 3, 4, 5], 2), [[1, 2], [3, 4], [5]]), (([], 3), [])),
        inputs=(([1], 1), ([1, 2], 2), ([1, 2, 3], 2), ([1, 2], 5)),
        solutions=(
            """
def pieces(values, size):
    result = []
    for start in range(0, len(values), size):
        result.append(values[start:start + size])
    return result
""",
            """
def pieces(values, size):
    result = []
    piece = []
    for value in values:
        piece.append(value)
        if len(piece) == size:
            result.append(piece)
            piece = []
    if piece:
        result.append(piece)
    return result
""",
        ),
    ),
    Problem(
        name="moved_zeros",
        question="Move the zeros of a list to its end; the order of the others stays.",
        draws=("ints -2 2 0 8",),
        examples=((([0, 1, 0, 3],), [1, 3, 0, 0]), (([],), [])),
        inputs=(([0],), ([1],), ([0, 0, 1],), ([1, 2],)),
        solutions=(
            """
def moved_zeros(values):
    result = []
    zeros = 0
    for value in values:
        if value == 0:
            zeros += 1
        else:
            result.append(value)
    return result + [0] * zeros
""",
            """
def moved_zeros(values):
    target = 0
    for place in range(len(values)):
        if values[place] != 0:
            values[target], values[place] = values[place], values[target]
            target += 1
    return values
""",
        ),
    ),
    Problem(
        name="transposed",
        question="Give the columns of a grid, a list of one or more rows of one length, as rows.",
        draws=("grid 0 9 1 4",),
        examples=((([[1, 2], [3, 4], [5, 6]],), [[1, 3, 5], [2, 4, 6]]), (([[7]],), [[7]])),
        inputs=(([[1, 2, 3]],), ([[1], [2]],)),
        solutions=(
            """
def transposed(grid):
    result = []
    for column in range(len(grid[0])):
        result.append([row[column] for row in grid])
    return result
""",
            """
def transposed(grid):
    result = [[] for _ in grid[0]]
    for row in grid:
        for column in range(len(row)):
            result[column].append(row[column])
    return result
""",
        ),
    ),
    Problem(
        name="is_sorted",
        question="Tell whether no number of a list is smaller than the one before it.",
        draws=("ints 0 4 0 4",),
        examples=((([1, 2, 2],), True), (([2, 1],), False)),
        inputs=(([],), ([1],), ([1, 3, 2],), ([0, 0],), ([1, 2, 3, 4],), ([2, 2, 1, 3],)),
        solutions=(
            """
def is_sorted(values):
    for place in range(1, len(values)):
        if values[place] < values[place - 1]:
            return False
    return True
""",
            """
def is_sorted(values):
    return all(values[i] <= values[i + 1] for i in range(len(values) - 1))
""",
        ),
    ),
    Problem(
        name="common_values",
        question=(
            "Give the values that are in both of two lists, each once, in the order of the first."
        ),
        draws=("ints 0 6 0 6", "ints 0 6 0 6"),
        examples=((([4, 1, 4, 2], [2, 4]), [4, 2]), (([1], []), [])),
        inputs=(([], []), ([1, 1], [1]), ([1, 2], [3])),
        solutions=(
            """
def common_values(a, b):
    found = []
    for value in a:
        if value in b and value not in found:
            found.append(value)
    return found
""",
            """
def common_values(a, b):
    both = set(a) & set(b)
    return sorted(both, key=lambda value: a.index(value))
""",
        ),
    ),
    Problem(
        name="median",
        question=(
            "Give the number in the middle of a list after sorting, the smaller of the two if "
            "there are two. The list is not empty."
        ),
        draws=("ints -9 9 1 7",),
        examples=((([5, 1, 3],), 3), (([4, 2, 8, 6],), 4)),
        inputs=(([1],), ([2, 1],), ([1, 1, 2],)),
        solutions=(
            """
def median(values):
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
""",
            """
def median(values):
    rest = list(values)
    while len(rest) > 2:
        rest.remove(max(rest))
        rest.remove(min(rest))
    return min(rest)
""",
        ),
    ),
)
