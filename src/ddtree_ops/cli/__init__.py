"""One file a verb: parse, call, print. Exit codes live here."""
