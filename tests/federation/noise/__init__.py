"""Tests of the noise models."""
