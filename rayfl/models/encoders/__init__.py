"""Frozen encoders: fixed maps from images to features, for methods that need a feature space."""
