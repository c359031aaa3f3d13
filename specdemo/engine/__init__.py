"""The decoding engine: it knows token ids and tensors; no text, no HTML, no user interface."""
