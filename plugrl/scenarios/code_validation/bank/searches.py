"""Problems about finding the best, the first or all of something."""

from __future__ import annotations

from plugrl.scenarios.code_validation.problem import Problem

SEARCHES = (
    Problem(
        name="find_sorted",
        question=(
            "Give the place, counted from 0, of target in a list of different numbers in ascending "
            "order; -1 if it is not there."
        ),
        draws=("rising ints 0 20 0 7", "int 0 20"),
        examples=((([1, 3, 5], 5), 2), (([1, 3], 2), -1)),
        inputs=(
            ([], 1),
            ([1], 1),
            ([1], 0),
            ([1, 2], 1),
            ([1, 2], 2),
            ([1, 2, 3], 2),
            ([1, 2, 3, 4], 1),
            ([1, 2, 3, 4], 4),
            ([1, 4, 6, 7, 9], 9),
            ([1, 4, 6, 7, 9], 1),
            ([1, 4, 6, 7, 9], 5),
        ),
        solutions=(
            """
def find_sorted(values, target):
    low = 0
    high = len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == target:
            return middle
        if values[middle] < target:
            low = middle + 1
        else:
            high = middle - 1
    return -1
""",
            """
def find_sorted(values, target):
    place = 0
    while place < len(values) and values[place] < target:
        place += 1
    if place < len(values) and values[place] == target:
        return place
    return -1
""",
        ),
    ),
    Problem(
        name="best_sum",
        question="Give the largest sum of neighbouring numbers of a list that is not empty.",
        draws=("ints -6 6 1 7",),
        examples=((([2, -5, 3, 4],), 7), (([-3, -1],), -1)),
        inputs=(([5],), ([-5],), ([1, -1, 1],), ([4, -1, 4],)),
        solutions=(
            """
def best_sum(values):
    best = values[0]
    current = 0
    for value in values:
        current += value
        if current > best:
            best = current
        if current < 0:
            current = 0
    return best
""",
            """
def best_sum(values):
    best = values[0]
    for start in range(len(values)):
        for end in range(start + 1, len(values) + 1):
            best = max(best, sum(values[start:end]))
    return best
""",
        ),
    ),
    Problem(
        name="two_sum",
        question=("Tell whether two numbers of a list, at different places, have the sum target."),
        draws=("ints 0 9 0 5", "int 0 18"),
        examples=((([1, 4, 6], 10), True), (([5], 10), False)),
        inputs=(([], 0), ([5, 5], 10), ([1, 2], 4), ([0, 3, 1], 1), ([2, 9, 3], 5)),
        solutions=(
            """
def two_sum(values, target):
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            if values[i] + values[j] == target:
                return True
    return False
""",
            """
def two_sum(values, target):
    seen = set()
    for value in values:
        if target - value in seen:
            return True
        seen.add(value)
    return False
""",
        ),
    ),
    Problem(
        name="longest_rise",
        question=(
            "Give the length of the longest run of neighbouring numbers of a list in which each is "
            "larger than the one before it; 0 for an empty list."
        ),
        draws=("ints 0 6 0 8",),
        examples=((([1, 2, 3, 1, 2],), 3), (([],), 0)),
        inputs=(([1],), ([2, 1],), ([1, 1],), ([3, 1, 2, 3, 4],)),
        solutions=(
            """
def longest_rise(values):
    if len(values) == 0:
        return 0
    best = 1
    length = 1
    for place in range(1, len(values)):
        if values[place] > values[place - 1]:
            length += 1
        else:
            length = 1
        best = max(best, length)
    return best
""",
            """
def longest_rise(values):
    best = 0
    for start in range(len(values)):
        end = start + 1
        while end < len(values) and values[end - 1] < values[end]:
            end += 1
        best = max(best, end - start)
    return best
""",
        ),
    ),
    Problem(
        name="majority",
        question=(
            "Give the number that makes up more than half of a list, or None if there is none."
        ),
        draws=("ints 0 2 0 6",),
        examples=((([2, 1, 2],), 2), (([1, 2],), None)),
        inputs=(([],), ([1],), ([1, 1, 2, 2],), ([0, 0, 0, 1],)),
        solutions=(
            """
def majority(values):
    for value in values:
        if values.count(value) * 2 > len(values):
            return value
    return None
""",
            """
def majority(values):
    candidate = None
    votes = 0
    for value in values:
        if votes == 0:
            candidate = value
        if value == candidate:
            votes += 1
        else:
            votes -= 1
    if values.count(candidate) > len(values) // 2:
        return candidate
    return None
""",
        ),
    ),
    Problem(
        name="climb_ways",
        question=(
            "Give the number of ways to climb n steps, at least 0, if one takes 1 or 2 at a time."
        ),
        draws=("int 0 11",),
        examples=(((3,), 3), ((0,), 1)),
        inputs=((1,), (2,), (4,)),
        solutions=(
            """
def climb_ways(n):
    ways = [1, 1]
    for step in range(2, n + 1):
        ways.append(ways[step - 1] + ways[step - 2])
    return ways[n]
""",
            """
def climb_ways(n):
    if n <= 1:
        return 1
    return climb_ways(n - 1) + climb_ways(n - 2)
""",
        ),
    ),
    Problem(
        name="missing_number",
        question=(
            "Give the smallest whole number of at least 0 that is not in a list of whole numbers, "
            "all of which are at least 0."
        ),
        draws=("ints 0 5 0 6",),
        examples=((([0, 1, 3],), 2), (([],), 0)),
        inputs=(([0],), ([1],), ([0, 1, 2],), ([2, 0, 1, 4],)),
        solutions=(
            """
def missing_number(values):
    candidate = 0
    while candidate in values:
        candidate += 1
    return candidate
""",
            """
def missing_number(values):
    ordered = sorted(set(values))
    for place in range(len(ordered)):
        if ordered[place] != place:
            return place
    return len(ordered)
""",
        ),
    ),
    Problem(
        name="best_profit",
        question=(
            "A list has the price of each day. Give the largest gain of buying on one day and "
            "selling on a later one; 0 if none gains."
        ),
        draws=("ints 1 9 0 6",),
        examples=((([7, 1, 5, 3],), 4), (([3, 2],), 0)),
        inputs=(([],), ([5],), ([1, 2],), ([2, 9, 1, 5],)),
        solutions=(
            """
def best_profit(prices):
    best = 0
    for buy in range(len(prices)):
        for sell in range(buy + 1, len(prices)):
            best = max(best, prices[sell] - prices[buy])
    return best
""",
            """
def best_profit(prices):
    best = 0
    lowest = None
    for price in prices:
        if lowest is None or price < lowest:
            lowest = price
        elif price - lowest > best:
            best = price - lowest
    return best
""",
        ),
    ),
    Problem(
        name="count_islands",
        question=(
            "A row has 0 for water and 1 for land. Give the number of runs of land, as long as "
            "they can be."
        ),
        draws=("ints 0 1 0 9",),
        examples=((([1, 1, 0, 1],), 2), (([],), 0)),
        inputs=(([0],), ([1],), ([0, 1, 0],), ([1, 0, 1, 0, 1],)),
        solutions=(
            """
def count_islands(row):
    count = 0
    before = 0
    for cell in row:
        if cell == 1 and before == 0:
            count += 1
        before = cell
    return count
""",
            """
def count_islands(row):
    count = 0
    for place in range(len(row)):
        if row[place] == 1 and (place == 0 or row[place - 1] == 0):
            count += 1
    return count
""",
        ),
    ),
    Problem(
        name="overlapping",
        question=(
            "Two spans of whole numbers reach from their first to their last number, both "
            "included. Give how many numbers they share: spans are a, b and c, d with a at most b "
            "and c at most d."
        ),
        draws=("int 0 5", "int 5 9", "int 2 6", "int 6 12"),
        examples=(((1, 5, 4, 8), 2), ((1, 2, 3, 4), 0)),
        inputs=((0, 0, 0, 0), (1, 3, 3, 5), (5, 9, 0, 2), (0, 9, 4, 5), (7, 8, 1, 6), (7, 8, 1, 7)),
        solutions=(
            """
def overlapping(a, b, c, d):
    first = max(a, c)
    last = min(b, d)
    if last < first:
        return 0
    return last - first + 1
""",
            """
def overlapping(a, b, c, d):
    count = 0
    for number in range(a, b + 1):
        if c <= number <= d:
            count += 1
    return count
""",
        ),
    ),
    Problem(
        name="pair_count",
        question=(
            "Give the number of pairs of places in a list at which the numbers are equal; a pair "
            "counts once whatever its order."
        ),
        draws=("ints 0 3 0 7",),
        examples=((([1, 1, 2, 1],), 3), (([1, 2],), 0)),
        inputs=(([],), ([4],), ([0, 0],), ([1, 2, 1, 2],)),
        solutions=(
            """
def pair_count(values):
    count = 0
    for i in range(len(values)):
        for j in range(i):
            if values[i] == values[j]:
                count += 1
    return count
""",
            """
def pair_count(values):
    total = 0
    for value in set(values):
        times = values.count(value)
        total += times * (times - 1) // 2
    return total
""",
        ),
    ),
)
