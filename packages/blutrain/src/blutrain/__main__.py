"""``python -m blutrain``."""

from __future__ import annotations

from blutrain.cli import main

main()
