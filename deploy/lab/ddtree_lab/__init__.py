"""Throwaway CT hosts (systemd-nspawn) with real systemd and sshd, and the faults to inject into them."""
