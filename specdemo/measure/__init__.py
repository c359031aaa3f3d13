"""What the steps add up to: figures, memory, and the file that a run is written to."""
