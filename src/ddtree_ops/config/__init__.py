"""hosts.yaml and facts/ as typed models, with errors as file:line:col."""
