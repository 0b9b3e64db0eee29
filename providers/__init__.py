"""One adapter per wire format, the model catalogue and the in-process vLLM engine. Sees requests, never lanes or ledgers."""
