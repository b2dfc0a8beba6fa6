#!/bin/bash
# Dataproc initialization action: sparkray.sh on every node of the cluster.
#
#   gcloud dataproc clusters create ... \
#       --initialization-actions gs://BUCKET/sparkray/dataproc.sh \
#       --metadata sparkray-folder=gs://BUCKET/sparkray,sparkray-secret=sparkray-token,SPARKRAY_REQUIREMENT=FILE.whl
#
# The folder holds sparkray.sh, and the wheel if one is named (a path within the folder). The
# metadata has the settings of sparkray.sh as well, and sparkray-secret: where Secret Manager
# keeps the token. The head runs on the (first) master.
#
# Tested on simulated hosts, with stand-ins for gsutil, gcloud and the metadata command; not on
# Google Cloud.
set +x # a trace must not show the token
set -euo pipefail

fail() {
    echo "sparkray Dataproc initialization action: $*" >&2
    exit 1
}

# metadata NAME: the cluster's value for it, nothing if there is none.
metadata() { /usr/share/google/get_metadata_value "attributes/$1" || true; }

folder=$(metadata sparkray-folder)
[[ $folder == gs://* ]] || fail "no metadata sparkray-folder=gs://..., which holds sparkray.sh"
[[ -z $(metadata SPARKRAY_TOKEN) ]] || fail "metadata is shown in the console: give sparkray-secret"
for name in REQUIREMENT PYTHON PORT WORKER_PORTS NUM_CPUS OBJECT_STORE_MEMORY TEMP_DIR LOG_DIR; do
    value=$(metadata "SPARKRAY_$name")
    [[ -z $value ]] || export "SPARKRAY_$name=$value"
done

files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
gsutil -q cp -r "${folder%/}/*" "$files" || fail "cannot copy $folder"
secret=$(metadata sparkray-secret)
if [[ -n $secret ]]; then
    mkdir -p /etc/sparkray
    export SPARKRAY_TOKEN_FILE=/etc/sparkray/token
    (umask 077 && gcloud secrets versions access latest "--secret=$secret" > "$SPARKRAY_TOKEN_FILE") ||
        fail "cannot read the secret $secret"
fi

master=$(metadata dataproc-master)
[[ -n $master ]] || fail "no metadata dataproc-master: is this a Dataproc node?"
DB_DRIVER_IP=$(getent ahostsv4 "$master" | awk 'NR == 1 { print $1 }' || true)
[[ -n $DB_DRIVER_IP ]] || fail "the master's name $master does not resolve"
DB_IS_DRIVER=FALSE
[[ $(hostname -s) != "${master%%.*}" ]] || DB_IS_DRIVER=TRUE
export DB_DRIVER_IP DB_IS_DRIVER
if [[ -z ${SPARKRAY_PYTHON:-} && -x /opt/conda/default/bin/python ]]; then
    export SPARKRAY_PYTHON=/opt/conda/default/bin/python
fi

cd "$files"
bash sparkray.sh
