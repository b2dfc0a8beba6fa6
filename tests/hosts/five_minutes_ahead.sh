#!/bin/bash
# Sets the clock of a worker's host five minutes ahead of the driver's, for all programs
# there.  FAKETIME_LIBRARY is the library that does it.
set -euo pipefail

[ "${DB_IS_DRIVER:-}" != TRUE ] || exit 0
echo '+5m' > /etc/faketimerc
echo "$FAKETIME_LIBRARY" > /etc/ld.so.preload
