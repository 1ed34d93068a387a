"""Alerts: messages about the conditions that need attention, to the receivers in the configuration file.

    book        which conditions a receiver knows, and what it should be sent next
    messages    the requests in the form of each template
    silences    conditions that are not sent for a while
    state       the file `alerts.json`: what was sent, silences, and the log
    alerts      observes the conditions every few seconds and sends the messages

The first three are pure. There is no queue of messages: a receiver that cannot be reached is sent the conditions of the
moment when it can be. So it gets one message after an outage, and nothing about conditions that came and went.
"""
