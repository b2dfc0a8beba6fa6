#!/bin/bash
# Makes a host as hard to live on as some real ones: its own name and those of the others do
# not resolve, and there is no IPv6, not even a loopback.
set -euo pipefail

umount /etc/hosts
echo '127.0.0.1 localhost' > /etc/hosts
ip -6 address flush dev lo
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
