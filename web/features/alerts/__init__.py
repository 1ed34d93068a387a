"""Alerts: messages about the conditions that need attention, to the receivers in the configuration file.

    receiver_alerts     the conditions that were sent to a receiver, and its next message
    messages            the requests in the form of each template
    state               what survives a restart: sent conditions, and the log
    alerts              observes the conditions every few seconds and sends the messages

The first two are pure. There is no queue of messages. After an outage a receiver gets one message with the
conditions that hold then, and nothing about conditions that began and ended during the outage.
"""
