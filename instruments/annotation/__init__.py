"""Human validation of a judge: a blind sample of its claims, a page to label them on, and sheets to label elsewhere."""
