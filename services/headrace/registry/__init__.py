"""The registry: `api` is the port, `etcd` and `memory` implement it, the rest builds on it."""
