"""Clients count by what they report of themselves.

    w_k = report_k   or   n_k * report_k

Local confidence ((FL)^2: Lee et al., NeurIPS 2024), numbers of confident samples, losses: any
number that is not negative and larger for clients that should count more."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rayfl.algorithms.parts.weighting import Weighting
from rayfl.component import component
from rayfl.errors import ConfigError, broken
from rayfl.protocol import ClientId, Fleet, Replies


@component
class ByReport(Weighting):
    """Clients count by a number of their report; equally where all of these are 0."""

    key: str
    """Which entry of a phase's `Out.report`, such as `kept`."""
    times_size: bool = False
    """Multiply by how many samples the client holds."""

    def __call__(self, got: Replies, fleet: Fleet) -> Mapping[ClientId, float]:
        weights = {client: self._read(client, got) for client in got}
        if self.times_size:
            weights = {client: fleet.size(client) * weight for client, weight in weights.items()}
        # A mean needs somebody who counts: who reports 0 alone is as good as the others.
        return weights if any(weights.values()) else dict.fromkeys(got, 1.0)

    def _read(self, client: ClientId, got: Replies) -> float:
        report = got[client]
        if self.key not in report:
            known = ", ".join(report) or "nothing"
            rule = f"weighting 'report' needs '{self.key}' in the report of every phase"
            raise ConfigError(broken(rule, f"{known} (client {client})", "Set weighting.key."))
        value = float(report[self.key])
        if not (math.isfinite(value) and value >= 0):
            rule = f"the report '{self.key}' is a weight: finite and not negative"
            raise ConfigError(broken(rule, f"{value} (client {client})"))
        return value
