"""Functions where a class is expected, and one that cannot be called as its kind is."""


def evaluator(data, target):
    return 1.0


def worker(task):
    raise NotImplementedError


def scorer(dialogue):
    return 1.0


async def wrong_scorer(dialogue):
    return 1.0
