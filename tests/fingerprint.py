"""What decides the last bits of a float: the processor's kernels and the libraries that choose
among them."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import torch

# Those that BLAS, oneDNN and torch choose their kernels by; a processor has a hundred others.
DECISIVE = {"avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"}
DECISIVE |= {"avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve", "bf16"}


def describe_arithmetic() -> dict[str, str]:
    """A fingerprint: where two are equal, two runs must agree to the last bit.

    The vendor counts beside the instructions, because libraries ask for it."""
    facts = _read_processor()
    flags = set((facts.get("flags") or facts.get("Features") or "").split())
    return {
        "machine": platform.machine(),
        "vendor": facts.get("vendor_id") or facts.get("CPU implementer") or "unknown",
        "instructions": " ".join(sorted(flags & DECISIVE)),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _read_processor() -> dict[str, str]:
    """What Linux says of the first processor; elsewhere nothing."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = [line.partition(":") for line in first.splitlines()]
    return {key.strip(): value.strip() for key, _, value in pairs}
