"""Real faults: full, failing and read-only disks, damaged files, a second server."""
