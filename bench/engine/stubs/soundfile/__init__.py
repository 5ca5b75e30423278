"""Stands in for soundfile, which SGLang's speech endpoint imports: these benchmarks send no audio."""
