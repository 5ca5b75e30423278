"""The commented hosts.yaml that `ddtree-ops init` writes; it loads as it stands."""

from __future__ import annotations

INIT_TEMPLATE = """\
# yaml-language-server: $schema=hosts.schema.json
# The hosts that ddtree-ops looks after. Editors complete and check it: ddtree-ops schema > hosts.schema.json
# Order: defaults, then a host's groups in order, then the host's own keys; the later wins.
version: 1

defaults:                       # any key of a host
  user: root                    # another user needs `sudo` without a password
  service: sglang.service       # the systemd unit that serves today
  series: sglang-0.5.11         # patch series: shipped with ddtree-ops, or ./my-series beside this file
  budget: 16                    # nodes of the draft tree, 1..1024
  topk: 4                       # children looked at per node, 1..64
  # port: 30000                 # default: what the adopted unit says
  # interpreter: /root/ml-env/bin/python3   # default: what the adopted unit says
  # requires: [grammar, logprobs]           # what clients rely on: a mode that loses one is refused
  # host_key: strict            # or accept-new, or a fingerprint SHA256:...
  # timeouts:                   # seconds; the phases of a start are stall limits
  #   {connect: 10, command: 60, import: 30, weights: 120, graphs: 180, serve: 30, confirm: 60, stop: 30}

groups:
  h200:
    tp: 2
    # model: /models/target
    # draft: /models/draft      # the DFlash draft of that target
    # environment:
    #   NCCL_DEBUG: WARN
    #   HF_TOKEN: {secret: env:HF_TOKEN}    # a reference; a value is refused

hosts:
  ct129:                        # by default the name is also what ssh connects to (see ~/.ssh/config)
    groups: [h200]
    # address: 10.0.0.129
    # ssh_port: 22
    # waive: {cuda-kernel: "rebuilt here"}    # let this rule pass: a WARN with the reason, kept in the history
    # ssh_config: ./ssh_config  # jump hosts, identities and known_hosts as ssh knows them
"""
