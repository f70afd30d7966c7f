"""Headrace beside Apache Kafka: the same jobs by the same clients, none of them ours, in turn on both."""
