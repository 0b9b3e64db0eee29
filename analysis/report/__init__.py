"""One self-contained page of a sweep's results. It lays out what `analysis` has computed and knows no store but by views.

Drawing needs matplotlib and the page needs Jinja (the `report` extra); nothing here is imported unless asked for.
"""
