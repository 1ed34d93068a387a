"""Tests of the benchmark and the profiler."""
