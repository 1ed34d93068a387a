"""The queue: jobs, tubes, clients and their state transitions. Pure: no socket, clock, disk, log or framework."""
