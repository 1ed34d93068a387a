"""The steps that operations share: functions over the Broker that move jobs, end waits, and apply tags and policies."""
