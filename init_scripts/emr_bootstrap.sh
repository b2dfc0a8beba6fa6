#!/bin/bash
# EMR bootstrap action: sparkray.sh on every node of the cluster.
#
#   aws emr create-cluster ... --bootstrap-actions Path=s3://BUCKET/sparkray/emr_bootstrap.sh,\
#       Args=[s3://BUCKET/sparkray,SPARKRAY_SECRET_ID=sparkray-token,SPARKRAY_REQUIREMENT=FILE.whl]
#
# The folder holds sparkray.sh, and the wheel if one is named (a path within the folder). The
# other arguments are settings of sparkray.sh, and SPARKRAY_SECRET_ID: where AWS Secrets Manager
# keeps the token. The head runs on the primary node.
#
# Tested on simulated hosts, with stand-ins for aws and sudo and for the files that EMR leaves; not
# on AWS.
set +x # a trace must not show the token
set -euo pipefail

fail() {
    echo "sparkray EMR bootstrap action: $*" >&2
    exit 1
}

[[ ${1:-} == s3://* ]] || fail "the first argument is the folder in S3 that holds sparkray.sh"
folder=${1%/}
shift
secret=
for setting in "$@"; do
    case $setting in
        SPARKRAY_TOKEN=*) fail "arguments are shown in the console: give SPARKRAY_SECRET_ID" ;;
        SPARKRAY_SECRET_ID=*) secret=${setting#*=} ;;
        SPARKRAY_*=*) export "${setting?}" ;;
        *) fail "not a setting: ${setting%%=*}" ;;
    esac
done

# Prints the address of the primary node, and whether this is it.
find_primary() {
    python3 - << 'PYTHON'
import json
import socket

info = "/mnt/var/lib/info/"
with open(info + "instance.json") as file:
    is_primary = bool(json.load(file)["isMaster"])
with open(info + "job-flow.json") as file:
    name = json.load(file)["masterPrivateDnsName"]
print(socket.gethostbyname(name), "TRUE" if is_primary else "FALSE")
PYTHON
}

files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
aws s3 cp --recursive --quiet "$folder" "$files" || fail "cannot copy $folder"
if [[ -n $secret ]]; then
    export SPARKRAY_TOKEN_FILE=$HOME/.sparkray-token
    (umask 077 && aws secretsmanager get-secret-value --secret-id "$secret" \
        --query SecretString --output text > "$SPARKRAY_TOKEN_FILE") ||
        fail "cannot read the secret $secret"
fi

primary=$(find_primary) || fail "cannot tell which node is the primary one"
export DB_DRIVER_IP=${primary% *} DB_IS_DRIVER=${primary#* }
export SPARKRAY_PYTHON=${SPARKRAY_PYTHON:-python3}
export SPARKRAY_LOG_DIR=${SPARKRAY_LOG_DIR:-/mnt/var/log/sparkray}
sudo install -d -m 700 -o "$(id -un)" "$SPARKRAY_LOG_DIR"

cd "$files"
# For all users, as executors run as another one; sparkray.sh then finds it installed.
sudo "$SPARKRAY_PYTHON" -m pip install --quiet --find-links . "${SPARKRAY_REQUIREMENT:-sparkray}"
bash sparkray.sh
