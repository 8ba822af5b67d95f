"""MKL, told that the processor is Intel's: it takes other kernels there than on anybody else's.

What it found out is kept in a variable of the library, whose address stands in the first
instruction of the function that asks for it."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import torch

MOVE = b"\x8b\x05"
"""`mov offset(%rip), %eax`, which is followed by four bytes of offset."""
QUESTION = "mkl_serv_intel_cpu_true"


def pretend_intel() -> None:
    """Before the first product: have MKL in this process believe that Intel made the processor."""
    _find_answer().value = 1


def can_pretend() -> bool:
    """Whether this build of torch has MKL, and as it is known here."""
    try:
        return _find_answer().value in (-1, 0, 1)
    except (AttributeError, ValueError):
        return False


def _find_answer() -> ctypes.c_int:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    function = ctypes.cast(getattr(library, QUESTION), ctypes.c_void_p).value or 0
    code = ctypes.string_at(function, len(MOVE) + 4)
    if not code.startswith(MOVE):
        raise ValueError(f"{QUESTION} begins otherwise: {code.hex()}")
    (offset,) = struct.unpack("<i", code[len(MOVE) :])
    return ctypes.c_int.from_address(function + len(code) + offset)
