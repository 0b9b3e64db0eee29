"""How property tests search: the same examples every time, so that a red build can be repeated; wider on request."""

import os

from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("MIRAGE_HYPOTHESIS", "steady"))
