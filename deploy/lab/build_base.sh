#!/bin/bash
# Builds the lower layer of every lab host: build_base.sh OUT_DIR. Its hash is the key of the image cache.
set -eu
OUT=$1

masked=(
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
  console-getty.service getty.target systemd-logind.service
  systemd-networkd.service systemd-resolved.service systemd-timesyncd.service
)

# The session limits are high because tests open many connections at once, and sshd would drop some of them.
sshd_settings='UseDNS no
PermitRootLogin prohibit-password
MaxStartups 100:30:200
MaxSessions 64
LogLevel VERBOSE
'

export MASKED="${masked[*]}" SSHD_SETTINGS="$sshd_settings"
exec mmdebstrap --quiet --variant=minbase --mode=root --format=directory \
  --include=systemd,systemd-sysv,dbus,openssh-server,python3,iproute2,nftables,procps,curl,rsync \
  --aptopt='Acquire::Languages "none"' \
  --aptopt='APT::Install-Recommends "false"' \
  --dpkgopt='force-unsafe-io' \
  --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/info/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' \
  --customize-hook='rm -f "$1"/etc/ssh/ssh_host_*' \
  --customize-hook='mkdir -p "$1/var/log/journal" "$1/etc/ssh/sshd_config.d"; mkdir -p -m 700 "$1/root/.ssh"' \
  --customize-hook='printf %s "$SSHD_SETTINGS" > "$1/etc/ssh/sshd_config.d/lab.conf"' \
  --customize-hook='for unit in $MASKED; do ln -sf /dev/null "$1/etc/systemd/system/$unit"; done' \
  bookworm "$OUT"
