#!/bin/bash
# Makes a host look like a node of EMR, as far as the bootstrap action looks, and runs that.
# PRIMARY is the name of the primary node, TOKEN what the secret holds.
set -euo pipefail

mkdir -p /mnt/var/lib/info
is_primary=false
[[ $(hostname) != "$PRIMARY" ]] || is_primary=true
echo "{\"isMaster\": $is_primary}" > /mnt/var/lib/info/instance.json
echo "{\"masterPrivateDnsName\": \"$PRIMARY\"}" > /mnt/var/lib/info/job-flow.json

cat > /usr/local/bin/sudo << 'SUDO'
#!/bin/bash
exec "$@"
SUDO
cat > /usr/local/bin/aws << 'AWS'
#!/bin/bash
case $* in
    "s3 cp --recursive --quiet s3://bucket/sparkray "*) cp /tmp/bucket/* "${@: -1}" ;;
    "secretsmanager get-secret-value --secret-id a-token "*) echo "$TOKEN" ;;
    *) exit 1 ;;
esac
AWS
chmod +x /usr/local/bin/{sudo,aws}

bash /tmp/bucket/emr_bootstrap.sh s3://bucket/sparkray/ SPARKRAY_SECRET_ID=a-token \
    "SPARKRAY_REQUIREMENT=$WHEEL" SPARKRAY_PORT=9340 SPARKRAY_TEMP_DIR=/tmp/other
