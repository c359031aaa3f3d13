"""Which pairs there are and how they come into memory."""
