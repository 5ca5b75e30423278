#!/bin/bash
# Installs what the lab and the tests need and this machine lacks; says in one sentence what it cannot install.
set -euo pipefail

refuse() { echo "ddtree-ops: $1" >&2; exit 3; }

[ "$(uname -s)" = Linux ] || refuse "the lab boots Linux containers: run this on Linux (the CLI itself runs anywhere)."
[ "$(id -u)" = 0 ] || refuse "the lab needs root for its namespaces and containers: run 'sudo make $*', or use a VM."
free_kib=$(df -Pk . | awk 'NR==2 {print $4}')
[ "$free_kib" -gt 3500000 ] || refuse "about 3 GB of disk are needed here, $((free_kib / 1024)) MiB are free."

declare -A package=(
  [systemd-nspawn]=systemd-container [mmdebstrap]=mmdebstrap [ip]=iproute2 [ssh]=openssh-client
  [/usr/sbin/sshd]=openssh-server [nsenter]=util-linux [git]=git [gcc]=gcc [curl]=curl [nft]=nftables
  [systemd-analyze]=systemd [zstd]=zstd
)
missing=()
for program in "${!package[@]}"; do
  command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
if [ "${#missing[@]}" -gt 0 ]; then
  command -v apt-get >/dev/null || refuse "these Debian packages are missing and there is no apt-get: ${missing[*]}."
  echo "installing: ${missing[*]}"
  apt-get update -qq || refuse "apt-get update failed, so ${missing[*]} cannot be installed: check the network."
  # policy-rc.d keeps packages from starting their services on this machine: the lab starts its own in containers.
  policy=/usr/sbin/policy-rc.d
  [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod +x "$policy"; made=1; }
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    refuse "apt-get could not install ${missing[*]}: type that command yourself to see why."
  [ -z "${made:-}" ] || rm -f "$policy"
fi
