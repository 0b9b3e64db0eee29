"""One adapter per wire format, the model catalogue, the in-process engine. Sees requests, never lanes or ledgers."""
