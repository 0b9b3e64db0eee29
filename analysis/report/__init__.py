"""One self-contained page of a sweep's results: lays out what `analysis` computes, and reads views of a store only.

Drawing needs matplotlib and the page needs Jinja (the `report` extra); nothing here is imported unless asked for.
"""
