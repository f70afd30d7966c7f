"""Kafka's wire protocol: framing, dispatch, zero-copy sending, the version table, and the codecs of the hot path.

It knows no service: a service gives `Api` its handlers and `Listener` the `Api`. Start reading at `listener`.
"""
