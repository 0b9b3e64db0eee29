"""From a store's SQL views to estimates, tables and a report. Stands alone: imports nothing of the other packages."""
