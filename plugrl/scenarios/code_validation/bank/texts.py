"""Problems about text."""

from __future__ import annotations

from plugrl.scenarios.code_validation.problem import Problem

TEXTS = (
    Problem(
        name="count_vowels",
        question="Give the number of vowels in a text: the letters a, e, i, o and u of any case.",
        draws=("text aeiouAEIOUbcdXYZ_ 0 12",),
        examples=((("Education",), 5), (("sky",), 0)),
        inputs=(("",), ("AEIOU",), ("aa",)),
        solutions=(
            """
def count_vowels(text):
    count = 0
    for letter in text.lower():
        if letter in 'aeiou':
            count += 1
    return count
""",
            """
def count_vowels(text):
    return sum(text.count(vowel) for vowel in 'aeiouAEIOU')
""",
        ),
    ),
    Problem(
        name="is_palindrome",
        question=(
            "Tell whether a text reads the same from both ends. Only letters and digits count, and "
            "case does not."
        ),
        draws=("text abA_, 0 6",),
        examples=((("No, on",), True), (("ab, bc",), False)),
        inputs=(("",), ("a",), ("ab",), ("aba",), ("Abba",), ("a,b",), ("1a1",), ("12",)),
        solutions=(
            """
def is_palindrome(text):
    kept = [letter.lower() for letter in text if letter.isalnum()]
    left = 0
    right = len(kept) - 1
    while left < right:
        if kept[left] != kept[right]:
            return False
        left += 1
        right -= 1
    return True
""",
            """
def is_palindrome(text):
    kept = ''
    for letter in text:
        if letter.isalnum():
            kept += letter.lower()
    return kept == kept[::-1]
""",
        ),
    ),
    Problem(
        name="longest_word",
        question=(
            "Give the longest word of a text whose words are separated by blanks; the first of "
            "them if there are several, and an empty text if there is none."
        ),
        draws=("text abc__ 0 14",),
        examples=((("to be or not",), "not"), (("one two",), "one")),
        inputs=(("",), ("  ",), ("a bb cc d",), ("abc",)),
        solutions=(
            """
def longest_word(text):
    best = ''
    for word in text.split():
        if len(word) > len(best):
            best = word
    return best
""",
            """
def longest_word(text):
    words = text.split()
    if len(words) == 0:
        return ''
    most = max(len(word) for word in words)
    return [word for word in words if len(word) == most][0]
""",
        ),
    ),
    Problem(
        name="run_lengths",
        question=(
            "Write each run of equal letters in a text as the letter and the length of the run: "
            "aab becomes a2b1."
        ),
        draws=("text aab 0 9",),
        examples=((("aab",), "a2b1"), (("",), "")),
        inputs=(("a",), ("aaa",), ("abab",), ("aabbaa",)),
        solutions=(
            """
def run_lengths(text):
    result = ''
    start = 0
    while start < len(text):
        end = start
        while end < len(text) and text[end] == text[start]:
            end += 1
        result += text[start] + str(end - start)
        start = end
    return result
""",
            """
def run_lengths(text):
    if not text:
        return ''
    result = ''
    count = 1
    for place in range(1, len(text)):
        if text[place] == text[place - 1]:
            count += 1
        else:
            result += text[place - 1] + str(count)
            count = 1
    return result + text[-1] + str(count)
""",
        ),
    ),
    Problem(
        name="shift_letters",
        question=(
            "Replace each letter from a to z in a text by the one that comes k places later in the "
            "alphabet, going on at a after z. All else stays. k is from 0 to 25."
        ),
        draws=("text axyzB_. 0 8", "int 0 25"),
        examples=((("abc", 1), "bcd"), (("xyz!", 3), "abc!")),
        inputs=(("", 4), ("z", 1), ("z", 0), ("a", 25), ("Z", 1)),
        solutions=(
            """
def shift_letters(text, k):
    result = ''
    for letter in text:
        if 'a' <= letter <= 'z':
            place = ord(letter) - ord('a') + k
            letter = chr(ord('a') + place % 26)
        result += letter
    return result
""",
            """
def shift_letters(text, k):
    alphabet = 'abcdefghijklmnopqrstuvwxyz'
    moved = []
    for letter in text:
        place = alphabet.find(letter)
        if place >= 0:
            moved.append(alphabet[(place + k) % 26])
        else:
            moved.append(letter)
    return ''.join(moved)
""",
        ),
    ),
    Problem(
        name="brackets_match",
        question=(
            "A text consists of round and square brackets. Tell whether each opening one is closed "
            "by one of its kind, and in the right order."
        ),
        draws=("text ()[] 0 6",),
        examples=((("([])",), True), (("([)]",), False), (("(",), False)),
        inputs=(("",), (")",), ("()[]",), ("(]",), ("(())",), ("[()]()",), ("[[]]",), ("())",)),
        solutions=(
            """
def brackets_match(text):
    waiting = []
    for bracket in text:
        if bracket == '(':
            waiting.append(')')
        elif bracket == '[':
            waiting.append(']')
        elif not waiting or waiting.pop() != bracket:
            return False
    return len(waiting) == 0
""",
            """
def brackets_match(text):
    while '()' in text or '[]' in text:
        text = text.replace('()', '')
        text = text.replace('[]', '')
    return text == ''
""",
        ),
    ),
    Problem(
        name="capitalised",
        question=(
            "Make the first letter of each word a capital and its other letters small. Words are "
            "separated by single blanks, which stay."
        ),
        draws=("text abAB_ 0 9",),
        examples=((("hello WORLD",), "Hello World"), (("a",), "A")),
        inputs=(("",), (" ab",), ("x Yz",), ("ab ",)),
        solutions=(
            """
def capitalised(text):
    words = []
    for word in text.split(' '):
        words.append(word[:1].upper() + word[1:].lower())
    return ' '.join(words)
""",
            """
def capitalised(text):
    result = ''
    for place in range(len(text)):
        if place == 0 or text[place - 1] == ' ':
            result += text[place].upper()
        else:
            result += text[place].lower()
    return result
""",
        ),
    ),
    Problem(
        name="common_prefix",
        question="Give the longest text with which both a and b begin.",
        draws=("text ab 0 6", "text ab 0 6"),
        examples=((("flower", "flow"), "flow"), (("dog", "cat"), "")),
        inputs=(("", ""), ("a", ""), ("abc", "abd"), ("ab", "ab")),
        solutions=(
            """
def common_prefix(a, b):
    length = 0
    while length < len(a) and length < len(b) and a[length] == b[length]:
        length += 1
    return a[:length]
""",
            """
def common_prefix(a, b):
    for length in range(min(len(a), len(b)), 0, -1):
        if a[:length] == b[:length]:
            return a[:length]
    return ''
""",
        ),
    ),
    Problem(
        name="are_anagrams",
        question="Tell whether b has the letters of a, each as often, in whatever order.",
        draws=("text ab 0 4", "text ab 0 4"),
        examples=((("listen", "silent"), True), (("aab", "abb"), False)),
        inputs=(("", ""), ("ab", "ba"), ("a", "aa"), ("abc", "abd"), ("aabb", "abab")),
        solutions=(
            """
def are_anagrams(a, b):
    if len(a) != len(b):
        return False
    for letter in a:
        if a.count(letter) != b.count(letter):
            return False
    return True
""",
            """
def are_anagrams(a, b):
    counts = {}
    for letter in a:
        counts[letter] = counts.get(letter, 0) + 1
    for letter in b:
        counts[letter] = counts.get(letter, 0) - 1
    return all(count == 0 for count in counts.values())
""",
        ),
    ),
    Problem(
        name="first_unique",
        question=(
            "Give the place, counted from 0, of the first letter that comes only once in a text; "
            "-1 if there is none."
        ),
        draws=("text abcd 0 7",),
        examples=((("aabc",), 2), (("aa",), -1)),
        inputs=(("",), ("a",), ("abab",), ("abac",)),
        solutions=(
            """
def first_unique(text):
    for place in range(len(text)):
        if text.count(text[place]) == 1:
            return place
    return -1
""",
            """
def first_unique(text):
    seen = {}
    for letter in text:
        seen[letter] = seen.get(letter, 0) + 1
    place = 0
    for letter in text:
        if seen[letter] == 1:
            return place
        place += 1
    return -1
""",
        ),
    ),
    Problem(
        name="count_matches",
        question=(
            "Give the number of places at which part, a text that is not empty, begins in text. "
            "They may overlap."
        ),
        draws=("text ab 0 9", "text ab 1 2"),
        examples=((("aaaa", "aa"), 3), (("abc", "d"), 0)),
        inputs=(("", "a"), ("a", "a"), ("ab", "ab"), ("a", "ab")),
        solutions=(
            """
def count_matches(text, part):
    count = 0
    for start in range(len(text) - len(part) + 1):
        if text[start:start + len(part)] == part:
            count += 1
    return count
""",
            """
def count_matches(text, part):
    count = 0
    place = text.find(part)
    while place >= 0:
        count += 1
        place = text.find(part, place + 1)
    return count
""",
        ),
    ),
)
