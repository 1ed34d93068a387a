"""Tests of the benchmark and the profile: that they measure what they say."""
