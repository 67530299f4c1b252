"""Problems about whole numbers."""

from __future__ import annotations

from plugrl.scenarios.code_validation.problem import Problem

NUMBERS = (
    Problem(
        name="digit_sum",
        question="Give the sum of the decimal digits of n, a whole number of at least 0.",
        draws=("int 0 9999",),
        examples=(((305,), 8), ((0,), 0)),
        inputs=((9,), (10,), (99,), (100,)),
        solutions=(
            """
def digit_sum(n):
    total = 0
    while n > 0:
        total += n % 10
        n //= 10
    return total
""",
            """
def digit_sum(n):
    return sum(int(digit) for digit in str(n))
""",
        ),
    ),
    Problem(
        name="is_prime",
        question="Tell whether n, a whole number of at least 0, is a prime number.",
        draws=("int 0 120",),
        examples=(((7,), True), ((9,), False), ((1,), False)),
        inputs=((0,), (2,), (3,), (4,), (25,), (49,), (121,)),
        solutions=(
            """
def is_prime(n):
    if n < 2:
        return False
    divisor = 2
    while divisor * divisor <= n:
        if n % divisor == 0:
            return False
        divisor += 1
    return True
""",
            """
def is_prime(n):
    count = 0
    for divisor in range(1, n + 1):
        if n % divisor == 0:
            count += 1
    return count == 2
""",
        ),
    ),
    Problem(
        name="greatest_common_divisor",
        question=(
            "Give the greatest whole number that divides both a and b, which are whole numbers of "
            "at least 1."
        ),
        draws=("int 1 60", "int 1 60"),
        examples=(((12, 18), 6), ((7, 3), 1)),
        inputs=((5, 5), (1, 9), (20, 10)),
        solutions=(
            """
def greatest_common_divisor(a, b):
    while b > 0:
        a, b = b, a % b
    return a
""",
            """
def greatest_common_divisor(a, b):
    best = 1
    for candidate in range(2, min(a, b) + 1):
        if a % candidate == 0 and b % candidate == 0:
            best = candidate
    return best
""",
        ),
    ),
    Problem(
        name="collatz_steps",
        question=(
            "Start at n, a whole number of at least 1. Halve even numbers; multiply odd ones by 3 "
            "and add 1. Give the number of steps until 1 is reached."
        ),
        draws=("int 1 60",),
        examples=(((6,), 8), ((1,), 0)),
        inputs=((2,), (3,), (27,)),
        solutions=(
            """
def collatz_steps(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps
""",
            """
def collatz_steps(n):
    if n == 1:
        return 0
    if n % 2 == 1:
        return 1 + collatz_steps(3 * n + 1)
    return 1 + collatz_steps(n // 2)
""",
        ),
    ),
    Problem(
        name="reverse_digits",
        question=(
            "Give the whole number with the decimal digits of n in reverse order, and with the "
            "sign of n. Zeros at its front are dropped."
        ),
        draws=("int -2000 2000",),
        examples=(((120,), 21), ((-45,), -54)),
        inputs=((0,), (7,), (-8,), (-10,)),
        solutions=(
            """
def reverse_digits(n):
    sign = 1
    if n < 0:
        sign = -1
        n = -n
    result = 0
    while n > 0:
        result = result * 10 + n % 10
        n = n // 10
    return sign * result
""",
            """
def reverse_digits(n):
    digits = str(abs(n))[::-1]
    if n >= 0:
        return int(digits)
    return 0 - int(digits)
""",
        ),
    ),
    Problem(
        name="is_leap_year",
        question=(
            "Tell whether a year is a leap year: one that 4 divides, except those that 100 divides "
            "and 400 does not."
        ),
        draws=("int 1580 2420",),
        examples=(((2024,), True), ((1900,), False), ((2000,), True)),
        inputs=((2100,), (2023,), (1600,), (2200,), (2400,), (1996,)),
        solutions=(
            """
def is_leap_year(year):
    if year % 400 == 0:
        return True
    if year % 100 == 0:
        return False
    return year % 4 == 0
""",
            """
def is_leap_year(year):
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
""",
        ),
    ),
    Problem(
        name="count_divisors",
        question="Give the number of whole numbers from 1 to n that divide n, which is at least 1.",
        draws=("int 1 100",),
        examples=(((12,), 6), ((1,), 1)),
        inputs=((2,), (4,), (9,), (16,), (97,)),
        solutions=(
            """
def count_divisors(n):
    count = 0
    divisor = 1
    while divisor * divisor <= n:
        if n % divisor == 0:
            count += 1
            if divisor != n // divisor:
                count += 1
        divisor += 1
    return count
""",
            """
def count_divisors(n):
    return len([d for d in range(1, n + 1) if n % d == 0])
""",
        ),
    ),
    Problem(
        name="fibonacci",
        question=(
            "Give number n of the sequence 0, 1, 1, 2, 3, 5, ... in which each number is the sum "
            "of the two before it. Numbers are counted from 0."
        ),
        draws=("int 0 18",),
        examples=(((6,), 8), ((0,), 0)),
        inputs=((1,), (2,), (3,)),
        solutions=(
            """
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
""",
            """
def fibonacci(n):
    if n < 2:
        return n
    values = [0, 1]
    while len(values) <= n:
        values.append(values[-1] + values[-2])
    return values[n]
""",
        ),
    ),
    Problem(
        name="integer_root",
        question=(
            "Give the largest whole number whose square is at most n, a whole number of at least 0."
        ),
        draws=("int 0 400",),
        examples=(((10,), 3), ((16,), 4)),
        inputs=((0,), (1,), (2,), (3,), (4,), (99,), (100,)),
        solutions=(
            """
def integer_root(n):
    low = 0
    high = n + 1
    while high - low > 1:
        middle = (low + high) // 2
        if middle * middle <= n:
            low = middle
        else:
            high = middle
    return low
""",
            """
def integer_root(n):
    root = 0
    while (root + 1) * (root + 1) <= n:
        root += 1
    return root
""",
        ),
    ),
    Problem(
        name="to_binary",
        question="Give n, a whole number of at least 0, in binary, as text without leading zeros.",
        draws=("int 0 300",),
        examples=(((5,), "101"), ((0,), "0")),
        inputs=((1,), (2,), (8,), (255,)),
        solutions=(
            """
def to_binary(n):
    if n == 0:
        return '0'
    digits = ''
    while n > 0:
        digits = str(n % 2) + digits
        n //= 2
    return digits
""",
            """
def to_binary(n):
    if n < 2:
        return str(n)
    return to_binary(n // 2) + str(n % 2)
""",
        ),
    ),
    Problem(
        name="change_coins",
        question=(
            "Give the smallest number of coins of 1, 5, 10 and 25 cents that are together worth an "
            "amount of cents of at least 0."
        ),
        draws=("int 0 130",),
        examples=(((30,), 2), ((4,), 4)),
        inputs=((0,), (5,), (25,), (41,), (99,)),
        solutions=(
            """
def change_coins(cents):
    count = 0
    for coin in [25, 10, 5, 1]:
        count += cents // coin
        cents %= coin
    return count
""",
            """
def change_coins(cents):
    fewest = [0]
    for amount in range(1, cents + 1):
        options = [fewest[amount - coin] for coin in [1, 5, 10, 25] if coin <= amount]
        fewest.append(min(options) + 1)
    return fewest[cents]
""",
        ),
    ),
)
