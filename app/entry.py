"""Where `trillm` begins. Importing the rest takes half a second: Ctrl-C meanwhile ends the process as it ends any
other, and not with a traceback of an import."""

from __future__ import annotations

import signal


def main() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from app.cli import main as run

    if before is not None:  # else somebody who is not Python's has set it, and it is theirs
        signal.signal(signal.SIGINT, before)
    run()


if __name__ == "__main__":
    main()
