"""One adapter per wire format, the model catalogue, the in-process vLLM engine. Sees requests, never lanes or ledgers."""
