"""Secrets planted wherever one can stand: in configurations, on command lines, in the
environment."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"
ODD = "/@:'\"?#&%;=,!$()[]{}|~^`+*-._"
"""What passwords may hold between letters; a blank ends them."""
NAMES = (
    "password",
    "Passwd",
    "secret_key",
    "SECRET",
    "token",
    "Access-Token",
    "api_key",
    "ApiKey",
    "X-Amz-Signature",
    "x-amz-credential",
    "X-Amz-Security-Token",
    "sig",
    "AWS_SECRET_ACCESS_KEY",
    "auth",
    "Authorization",
    "private_key",
    "account_key",
    "pwd",
)
ANY_NAMES = (*NAMES, "sv", "k", "key", "x")
"""In a query any name may be one."""
SCHEMES = ("s3", "gs", "http", "https", "postgresql+psycopg2", "hdfs", "abfss", "redis")


@dataclass
class Planter:
    """Makes secrets, and remembers what must not be found.

    Each secret has two cores with anything between them: where a part is hidden and another is not,
    the core that is not tells."""

    seed: str
    cores: list[str] = field(default_factory=list)
    planted: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def secret(self, odd: str = ODD) -> str:
        self.planted += 1
        first, last = ("".join(self.rng.choices(LETTERS, k=10)) for _ in range(2))
        self.cores += [first, last]
        between = "".join(self.rng.choices(odd, k=self.rng.randint(0, 4))) if odd else ""
        return f"{first}{between}{last}"

    def uri(self) -> str:
        """A URI with a secret in it."""
        rng = self.rng
        scheme = rng.choice(SCHEMES)
        if rng.random() < 0.6:
            return f"{scheme}://user:{self.secret()}@host.example/x"
        if rng.random() < 0.3:
            return f"{scheme}://{self.secret(odd='%-._')}@host.example/x"
        query = f"{rng.choice(ANY_NAMES)}={self.secret(odd='%/@:._-')}"
        before = rng.choice(["", "region=eu&", "a=1;"])
        return f"{scheme}://host.example/x?{before}{query}&region=eu"

    def text(self) -> str:
        """A text with a secret in it."""
        rng = self.rng
        name = rng.choice(NAMES)
        said = rng.choice(
            [
                f"{name}={self.secret()}",
                f"see {self.uri()} there",
                f"{name}: {self.secret()}",
                f"Authorization: Bearer {self.secret(odd='._-')}",
                self.uri(),
            ]
        )
        # Only one of them is used; the others are as good as not planted, and cannot be found.
        return rng.choice([said, f"run 7, {said}", f"{said} (nightly)"])


def settings_of(planter: Planter) -> dict[str, Any]:
    """A valid configuration with secrets in all places that take a text."""
    rng = planter.rng
    tags = {f"see {at}": planter.text() for at in range(4)}
    tags |= {rng.choice(NAMES): planter.secret(), planter.uri(): "x"}
    return {
        "data": rng.choice(
            [
                {"name": "folder", "path": planter.uri()},
                {"name": "parquet", "path": planter.uri()},
                "digits",
            ]
        ),
        "noise": rng.choice(
            [
                {"name": "transition", "matrix": planter.uri()},
                {"name": "human", "file": planter.uri(), "key": "worse"},
                "none",
            ]
        ),
        "clients": 4,
        "fleet": "inline",
        "checkpoint": {"uri": planter.uri()},
        "tracking": {
            "enabled": False,
            "uri": planter.uri(),
            "experiment": planter.text(),
            "run_name": planter.text(),
            "tags": tags,
        },
    }


Spoil = Callable[[dict[str, Any], Planter], str]
SPOILS: Mapping[str, Spoil] = {
    "an unknown method": lambda tree, planter: f"method={planter.uri()}",
    "an unknown key": lambda tree, planter: f"method.x={planter.uri()}",
    "a secret that is a list": lambda tree, planter: f"tracking.tags.password=[{planter.uri()!r}]",
    "a number under a secret name": lambda tree, planter: "tracking.tags.password=123456789",
    "output that is a URI": lambda tree, planter: f"output={planter.uri()!r}",
    "data_root that is a URI": lambda tree, planter: f"data_root={planter.uri()!r}",
    "a URI for a number": lambda tree, planter: f"clients={planter.uri()!r}",
    "broken YAML": lambda tree, planter: f"tracking.run_name=[{planter.uri()!r}, {{",
    "no equals sign": lambda tree, planter: planter.uri().replace("=", "%"),
    "a URI for a section": lambda tree, planter: f"training={planter.uri()!r}",
    "a long list": lambda tree, planter: f"model={[planter.uri() for _ in range(3)]}",
}
"""Overrides that are refused, with secrets in them."""
