"""The conditions that need attention: what is wrong now, since when, and which jobs or workers are concerned.

    trends      the growth of counters over the last minutes
    measures    compares one tube, or the server, with its thresholds
    tracker     active conditions, with a delay before they begin and hysteresis before they end
    monitor     reads the broker every few seconds and feeds the other modules

The first three are pure: functions of a snapshot, of thresholds and of the time.
"""
