#!/bin/bash
# Makes a host look like a node of Dataproc, as far as the initialization action looks, and
# runs that.  PRIMARY is the master's name, TOKEN what the secret holds.
set -euo pipefail

mkdir -p /usr/share/google
cat > /usr/share/google/get_metadata_value << 'METADATA'
#!/bin/bash
case $1 in
    attributes/sparkray-folder) echo gs://bucket/sparkray ;;
    attributes/sparkray-secret) echo a-token ;;
    attributes/dataproc-master) echo "$PRIMARY" ;;
    attributes/SPARKRAY_REQUIREMENT) echo "$WHEEL" ;;
    attributes/SPARKRAY_PORT) echo 9341 ;;
    attributes/SPARKRAY_TEMP_DIR) echo /tmp/other ;;
    *) exit 1 ;;
esac
METADATA
cat > /usr/local/bin/gsutil << 'GSUTIL'
#!/bin/bash
[[ $* == "-q cp -r gs://bucket/sparkray/* "* ]] && cp /tmp/bucket/* "${@: -1}"
GSUTIL
cat > /usr/local/bin/gcloud << 'GCLOUD'
#!/bin/bash
[[ $* == "secrets versions access latest --secret=a-token" ]] && echo "$TOKEN"
GCLOUD
chmod +x /usr/share/google/get_metadata_value /usr/local/bin/{gsutil,gcloud}

bash /tmp/bucket/dataproc.sh
