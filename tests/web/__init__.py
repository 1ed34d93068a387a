"""The dashboard: its pages by Flask's client over a broker with fake time, and by a real browser over a daemon."""
