#!/bin/bash
# Cluster init script: a sparkray cluster beside Spark, on Databricks and the like.
#
# Runs on every host before Spark starts. Installs sparkray into the cluster's Python, then
# starts a head and an agent on the driver, an agent on every other host. Hosts may come in
# any order: an agent whose head is not there yet waits for it in the background. Running the
# script again changes nothing. In a notebook `sparkray.init()` then finds the cluster.
#
# Settings, as environment variables of the cluster:
#
#   SPARKRAY_TOKEN                 the cluster's secret, 16 characters or more, or
#   SPARKRAY_TOKEN_FILE            a file that holds it: one of the two has to be there
#   SPARKRAY_REQUIREMENT           a wheel's path or a pip requirement (default: sparkray);
#                                  wheels beside that wheel serve what it needs
#   SPARKRAY_PYTHON                default: /databricks/python/bin/python where it exists,
#                                  else PYSPARK_PYTHON, else python3
#   SPARKRAY_PORT                  the head's (default: 9339)
#   SPARKRAY_WORKER_PORTS          FIRST-LAST for workers (default: 20000-25000)
#   SPARKRAY_LOG_DIR               default: /databricks/driver/logs/sparkray where there is a
#                                  /databricks/driver, else /var/log/sparkray
#   SPARKRAY_NUM_CPUS              for tasks on each host (default: all)
#   SPARKRAY_TEMP_DIR, SPARKRAY_OBJECT_STORE_MEMORY, ...    as in docs/configuration.md
#
# The role comes from DB_IS_DRIVER (TRUE or not) and DB_DRIVER_IP.
#
# Tested on simulated hosts that run init scripts as Databricks does; not on Databricks itself.
set +x # a trace must not show the token
set -euo pipefail

say() { echo "sparkray init script: $*"; }
fail() {
    say "$*" >&2
    exit 1
}

find_python() {
    local choice=${SPARKRAY_PYTHON:-}
    if [[ -z $choice && -x /databricks/python/bin/python ]]; then
        choice=/databricks/python/bin/python
    fi
    choice=${choice:-${PYSPARK_PYTHON:-python3}}
    command -v -- "$choice" || fail "no Python at $choice: set SPARKRAY_PYTHON"
}

check_token() {
    if [[ -n ${SPARKRAY_TOKEN:-} ]]; then
        [[ $SPARKRAY_TOKEN != *'{{'* ]] || fail "SPARKRAY_TOKEN refers to a secret that is not there"
        [[ ${#SPARKRAY_TOKEN} -ge 16 ]] || fail "SPARKRAY_TOKEN is too short for a secret"
        return 0
    fi
    [[ -n ${SPARKRAY_TOKEN_FILE:-} ]] || fail "no token: set SPARKRAY_TOKEN (from a" \
        "secret of the platform) or SPARKRAY_TOKEN_FILE, to the same secret on all hosts;" \
        "python3 -c 'import secrets; print(secrets.token_hex(32))' makes one"
    [[ -r $SPARKRAY_TOKEN_FILE ]] || fail "SPARKRAY_TOKEN_FILE: cannot read $SPARKRAY_TOKEN_FILE"
    SPARKRAY_TOKEN_FILE=$(realpath -- "$SPARKRAY_TOKEN_FILE")
    export SPARKRAY_TOKEN_FILE
}

# compare WHEEL: "same" if it is installed, "other" if another one of its version is.
compare() {
    (cd / && "$python" - "$1" << 'END'
import importlib.metadata, pathlib, sys, zipfile

wheel = pathlib.Path(sys.argv[1])
try:
    found = importlib.metadata.distribution("sparkray")
except importlib.metadata.PackageNotFoundError:
    sys.exit()
if wheel.name.startswith(f"sparkray-{found.version}-"):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
        lines = archive.read(name).decode().splitlines()
    ours = (found.read_text("RECORD") or "").splitlines()
    sources = [{line for line in some if line.startswith("sparkray/") and ".pyc" not in line}
               for some in (lines, ours)]  # each with its hash
    print("same" if sources[0] == sources[1] else "other")
END
    )
}

install() {
    local requirement=${SPARKRAY_REQUIREMENT:-sparkray} found=
    local options=(--quiet --disable-pip-version-check --no-input)
    if [[ $requirement == */* || $requirement == *.whl ]] && [[ $requirement != *://* ]]; then
        [[ -e $requirement ]] || fail "SPARKRAY_REQUIREMENT: there is no $requirement"
        requirement=$(realpath -- "$requirement")
        options+=("--find-links=$(dirname -- "$requirement")")
        case $requirement in *.whl)
            found=$(compare "$requirement") || fail "$requirement is no wheel" ;;
        esac
        [[ $found != same ]] || return 0
    fi
    # What the requirement needs comes first: the second step fetches nothing.
    pip_install "${options[@]}" "$requirement" || fail "cannot install $requirement for $python"
    [[ $found != other ]] || pip_install "${options[@]}" --force-reinstall --no-deps "$requirement" ||
        fail "cannot install $requirement for $python"
}

# Neither the token nor the settings are of interest to what pip may run.
pip_install() {
    (cd / && env -u SPARKRAY_TOKEN PIP_ROOT_USER_ACTION=ignore "$python" -m pip install "$@")
}

log_dir() {
    local default=/var/log/sparkray
    [[ ! -d /databricks/driver ]] || default=/databricks/driver/logs/sparkray
    echo "${SPARKRAY_LOG_DIR:-$default}"
}

# Sets `options`, those of `sparkray start`.
choose_options() {
    local port=${SPARKRAY_PORT:-9339} ports=${SPARKRAY_WORKER_PORTS:-20000-25000}
    [[ -n ${DB_DRIVER_IP:-} ]] || fail "DB_DRIVER_IP is not set: this is for cluster init scripts"
    [[ $ports =~ ^([0-9]+)-([0-9]+)$ ]] ||
        fail "SPARKRAY_WORKER_PORTS has to be like 20000-25000, not $ports"
    options=(--once "--worker-port-min=${BASH_REMATCH[1]}" "--worker-port-max=${BASH_REMATCH[2]}"
        "--log-dir=$(log_dir)")
    [[ -z ${SPARKRAY_NUM_CPUS:-} ]] || options+=("--num-cpus=$SPARKRAY_NUM_CPUS")
    if [[ ${DB_IS_DRIVER:-} == TRUE ]]; then
        options+=(--head "--host=$DB_DRIVER_IP" "--port=$port")
    else
        options+=("--address=$DB_DRIVER_IP:$port" --wait-for-head)
    fi
}

choose_options
check_token
python=$(find_python)
say "$(hostname): installing ${SPARKRAY_REQUIREMENT:-sparkray} for $python"
install
(cd / && "$python" -m sparkray start "${options[@]}")
say "logs are in $(log_dir)"
