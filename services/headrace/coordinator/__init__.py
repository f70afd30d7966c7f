"""The group coordinator: consumer groups and committed offsets. `groups.Shard` is the way in."""
