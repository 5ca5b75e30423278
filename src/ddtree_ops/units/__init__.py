"""systemd units: read by systemd's own rules, rewrite, render, lint, diff."""
