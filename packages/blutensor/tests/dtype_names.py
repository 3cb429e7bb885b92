"""Names of all dtypes, for tests over each."""

from __future__ import annotations

FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
NUMPY_DTYPES = tuple(name for name in DTYPES if name != "bfloat16")
"""Those that NumPy has too."""
