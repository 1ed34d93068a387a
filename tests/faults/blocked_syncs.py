"""Run the server, and let each sync of a file wait as long as another file exists.

Usage: python -m tests.faults.blocked_syncs FILE [server's arguments]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from greenstalk_server.__main__ import main

if __name__ == "__main__":
    blocker = Path(sys.argv.pop(1))
    sync = os.fdatasync

    def sync_unblocked(handle: int) -> None:
        while blocker.exists():
            time.sleep(0.01)
        sync(handle)

    os.fdatasync = sync_unblocked  # type: ignore[assignment]
    main()
