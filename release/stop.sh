#!/bin/sh
# Ends the units of trueup-fleet before their package is removed, by dpkg or rpm. An upgrade leaves them as they are.
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now trueup-fleet-serve.service trueup-fleet-worker.service || true
	fi
	;;
esac
