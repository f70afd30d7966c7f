"""Headrace: a partitioned, replicated, durable log for Kubernetes that speaks Kafka's protocol."""

__version__ = "0.1.0"
