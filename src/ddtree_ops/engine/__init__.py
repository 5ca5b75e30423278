"""Engine sources: snapshot, patch series, release bundle, digests."""
