"""The history of each tube and of the server: sampled every second, downsampled, and kept on disk.

tube_counters   the counters of tubes
rings           time series of fixed size in memory
tube_series     the series of one tube
history         samples all tubes, and answers queries
points          points and sketches as bytes
archive         points in blocks of time, in bounded space
files           the blocks on disk
restored        the history of the previous run
worker_rates    the throughput of workers
"""
