"""Sending by batch APIs: shards of requests that a provider works off by itself, crash-safe from intent to clean-up."""
