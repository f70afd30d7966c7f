"""The controller: topics, placement, leaders, in-sync replicas and settings, decided by the one that is elected.

`plan` says what a decision reads and wants; `topics`, `leaders`, `isr`, `reassignment`, `configs` and `producer_ids`
decide and do no I/O. `transactions` turns plans into writes, `picture` holds what is known, `senders` tells brokers,
`reign` is one term of the active controller, `controller` the way to it, and `server` the process's gRPC port.
"""
