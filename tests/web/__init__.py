"""Tests of the dashboard: with Flask's client over a broker in fake time, and with a real browser and daemon."""
