#!/usr/bin/env bash
# Runs the README's first command and the numerical tests with Debian's NumPy, which is not built on OpenBLAS: with the
# reference BLAS and with BLIS. Run it by hand, never in CI. On a bare Debian machine, as root:
#
#     tests/other_blas.sh [FOLDER]                both libraries; the last lines are a table
#     tests/other_blas.sh FOLDER BLAS COMMAND...  one command with one library, after a run with FOLDER
#
# FOLDER stores Debian's files for later runs; without it, everything is temporary.
set -euo pipefail
# shellcheck source=tests/debian_root.sh
source "$(dirname "$0")/debian_root.sh"

names=(reference blis)
declare -A library=([reference]=blas [blis]=blis-pthread) # the folder of each libblas.so.3 in Debian
venv_options=(--system-site-packages)                     # for Debian's NumPy

prepare() { # FOLDER
    unpack_root "$1/other" "$(dpkg --print-architecture)" \
        python3,python3-venv,gcc,libc6-dev,python3-numpy,libblas3,liblapack3,libblis4-pthread
}

on() { # BLAS COMMAND...
    local folders
    folders=$(echo "$root"/usr/lib/*/{"${library[$1]}",lapack})
    folders=${folders//$root/}
    LD_LIBRARY_PATH=${folders// /:} inside "${@:2}"
}

in_use() { # BLAS: prints it if NumPy has loaded its file
    local loaded
    loaded=$(on "$1" python -c 'import numpy
print(*{line.split()[-1] for line in open("/proc/self/maps") if "/libblas.so" in line})') || return
    if [[ $loaded = /usr/lib/*/"${library[$1]}"/libblas.so* ]]; then echo "$1"; else echo "$loaded"; fi
}

main "$@"
