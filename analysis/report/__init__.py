"""One self-contained page of a sweep's results. It lays out what `analysis` has computed and reads a store's views only.

Drawing needs matplotlib and the page needs Jinja (the `report` extra); nothing here is imported unless asked for.
"""
