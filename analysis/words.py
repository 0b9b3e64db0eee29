"""Counts in words. Knows no table and no data."""


def plural(count: int, nouns: str) -> str:
    """Return a count with its noun, which is given in the plural.

    Examples
    --------
    >>> plural(1, "memories"), plural(1200, "records")
    ('1 memory', '1,200 records')
    """
    return f"{count:,} {nouns if count != 1 else singular(nouns)}"


def singular(nouns: str) -> str:
    """Return a plural noun in the singular; of several words the last is the noun.

    Examples
    --------
    >>> singular("families"), singular("task answers")
    ('family', 'task answer')
    """
    return f"{nouns[:-3]}y" if nouns.endswith("ies") else nouns[:-1]
