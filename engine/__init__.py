"""The life of a request, from plan to reading: paid once, within budget, safe from crashes. Knows no provider."""
