"""One module for each Kafka API that a broker serves, named by its key. COMPATIBILITY.md is made from their docstrings."""
