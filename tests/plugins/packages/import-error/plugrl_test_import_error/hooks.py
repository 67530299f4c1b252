import package_that_is_not_there  # noqa: F401
