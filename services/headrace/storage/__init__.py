"""The log engine: partitions as folders of segments, byte-compatible with Apache Kafka's.

Begin with `log.Log` (one partition) and `log_dirs.LogDirs` (all of a broker's). `recovery.open_log` opens a log,
`segment.Segment` is a file with its two indexes, `files.Files` is the door to the disk and `memory_files.MemoryFiles`
the same in memory, with crashes. No network, no threads, no clock in here.
"""
