from __future__ import annotations

import pytest

import rayfl
from rayfl.audit.story import Audit
from tests.audit.toys import QUICK, make_settings


@pytest.fixture(scope="session")
def made() -> Audit:
    """One audit of four clients, of whom the last has wrong labels."""
    audit: Audit = rayfl.audit(make_settings(), plan=QUICK)
    return audit
