"""specdemo: a plain and a speculative path answer one prompt side by side, on one device, by own clocks."""

__version__ = "0.1.0"
