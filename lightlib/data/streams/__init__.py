"""Libraries of streams: how each shards its data, keeps its position and counts epochs."""
