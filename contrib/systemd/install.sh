#!/bin/sh
# Sets up the service: user, folders, settings with a new key, unit. May be repeated, also to upgrade;
# settings that are there stay as they are. Starts nothing.
set -eu
cd "$(dirname "$0")"
settings=/etc/solar-host/solar-host.env

if [ "$(id -u)" != 0 ] || [ ! -x /opt/solar-host/bin/solar-host ]; then
    echo "Run this as root, with solar-host installed into /opt/solar-host (docs/systemd.md)" >&2
    exit 1
fi

install -D -m 644 sysusers.conf /etc/sysusers.d/solar-host.conf
install -D -m 644 tmpfiles.conf /etc/tmpfiles.d/solar-host.conf
install -D -m 644 solar-host.service /etc/systemd/system/solar-host.service
systemd-sysusers solar-host.conf
if [ ! -e "$settings" ]; then
    key=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
    uid=$(id -u solar-host) gid=$(id -g solar-host)
    umask 077
    mkdir -p /etc/solar-host
    sed "s/^API_KEY=.*/API_KEY=$key/; s/^CONTAINER_UID=.*/CONTAINER_UID=$uid/; s/^CONTAINER_GID=.*/CONTAINER_GID=$gid/" \
        solar-host.env > "$settings.new"
    mv "$settings.new" "$settings"
fi
systemd-tmpfiles --create solar-host.conf
systemctl daemon-reload
echo "Settings, with the key: $settings. To start now and at boot: systemctl enable --now solar-host"
