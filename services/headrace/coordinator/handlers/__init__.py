"""The coordinator's handlers of Kafka's protocol, one module an API."""
