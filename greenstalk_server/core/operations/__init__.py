"""The operations on the queue: modules of functions over the Broker, one topic each. Pure."""
