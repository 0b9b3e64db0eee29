"""One self-contained page of a sweep's results. It lays out what `analysis` has computed, and of a store reads views only.

Drawing needs matplotlib and the page needs Jinja (the `report` extra); nothing here is imported unless asked for.
"""
