"""``python -m blutrain``, and the program ``blutrain``."""

from __future__ import annotations

import signal

# Libraries take a while to load: until the command has a handler of its own, Ctrl-C ends the process without more ado.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from blutrain.cli import main

if __name__ == "__main__":
    main()
