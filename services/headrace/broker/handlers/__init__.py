"""One module for each Kafka API that a broker serves, named by its key. Their docstrings make COMPATIBILITY.md."""
