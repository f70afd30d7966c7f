"""Kafka's record batches as bytes: building, reading, validating and compressing them. Pure functions, no I/O.

Headers are read and stamped in `batch`, records inside them in `record`, formats 0 and 1 in `legacy`. The hot path
needs `batch` alone: it never looks behind a header.
"""
