"""Tests of durability: the codec and recovery with any input, simulated disks, and directories of real servers."""
