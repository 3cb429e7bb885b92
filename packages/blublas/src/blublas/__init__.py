"""Matrix products with fused epilogues, and the thread pool that BluTrain's packages share."""

from __future__ import annotations

from blublas._threads import num_threads, set_num_threads

__all__ = ["num_threads", "set_num_threads"]
