"""The page. It imports no torch: the models are met on the device's thread only."""
