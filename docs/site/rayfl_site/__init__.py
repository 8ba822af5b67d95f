"""Makes the documentation site: pages that stand in `docs`, and pages that are written from the
components themselves."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The top of the checkout."""
HERE = ROOT / "docs" / "site"
