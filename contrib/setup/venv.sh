#!/bin/sh
# Makes .venv with a Python of 3.11 or newer, installing one on Debian and Ubuntu where there is
# none. Quick when it is there already.
set -eu
cd "$(dirname "$0")/../.."

if [ -x .venv/bin/python ] && .venv/bin/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    exit 0
fi

# Sets $python to the first interpreter that is new enough, and $complete to "yes" if it can make
# virtual environments (Debian ships that part as a package of its own).
find_python() {
    python='' complete=no
    for candidate in "${PYTHON:-python3}" python3 python3.13 python3.12 python3.11 python3.14 /usr/bin/python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            [ -n "$python" ] || python=$candidate
            if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
                python=$candidate complete=yes
                return
            fi
        fi
    done
}

find_python
if [ $complete = no ]; then
    if [ -n "$python" ]; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    else
        package='python3 python3-venv'
    fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "A Python of 3.11 or newer with its venv module is needed (on Debian or Ubuntu: apt-get install $package)" >&2
        exit 1
    fi
    echo "==> Installing $package"
    apt-get update -q >/dev/null
    # shellcheck disable=SC2086 # two packages are two words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $package </dev/null
    find_python
    if [ $complete = no ]; then
        echo "This system's Python is older than 3.11: install a newer one, and name it in PYTHON" >&2
        exit 1
    fi
fi

echo "==> Making .venv with $("$python" --version)"
rm -rf .venv
"$python" -m venv .venv
