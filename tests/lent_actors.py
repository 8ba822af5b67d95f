"""Client actors that tests hand on to one another: to start a process costs more than most of what
is tried on it."""

from __future__ import annotations

from rayfl.testing.actors import ActorReserve

ACTORS = ActorReserve()
"""Of the whole session: they end with its Ray."""
