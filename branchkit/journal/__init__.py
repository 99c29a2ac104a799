"""The journal: one append-only, hash-chained sequence of events per run, and its blobs."""
