"""Training speed and memory beside PyTorch; writes the results that the README's table is made from.

python packages/blutrain/benchmarks/train.py [OUT.json]
"""

from __future__ import annotations

import sys

from blutrain.benchmark import bench, format_table, save

if __name__ == "__main__":
    entries = bench(peer="torch", report=lambda text: print(text, file=sys.stderr))
    print(format_table(entries))
    if len(sys.argv) > 1:
        save(entries, sys.argv[1])
