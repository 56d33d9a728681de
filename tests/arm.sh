#!/usr/bin/env bash
# Runs the README's first command and the tests of numbers on the kernels that NumPy's OpenBLAS has for ARM machines of
# 64 bits, emulated by qemu. By hand, never in CI: a kernel can take hours. On a bare Debian machine, as root:
#
#     tests/arm.sh [FOLDER]                  all kernels; the last lines are a table
#     tests/arm.sh FOLDER KERNEL COMMAND...  one command on one kernel, in this checkout, once FOLDER has been used so
#
# FOLDER keeps Debian's files and is used again; without it everything is temporary. Property tests run in full: what
# takes long under emulation is arithmetic at real widths, which fewer examples would leave as long.
set -euo pipefail
# shellcheck source=tests/debian_root.sh
source "$(dirname "$0")/debian_root.sh"

names=(ARMV8 NEOVERSEN1 NEOVERSEV1)
# A CPU with the instructions of the kernel. NEOVERSEV1's vectors have 256 bits, for which `max` must not take its 512;
# and `max` runs Python two to three times slower where it authenticates pointers, which nothing here needs.
declare -A cpu=(
    [ARMV8]=cortex-a57
    [NEOVERSEN1]=neoverse-n1
    [NEOVERSEV1]='max,sve-max-vq=2,pauth=off'
)

prepare() { # FOLDER
    local handlers=/proc/sys/fs/binfmt_misc
    # With its handler the system starts ARM programs, and what they start, by qemu.
    install_here qemu-user-static binfmt-support
    [ -e $handlers/register ] || mount -t binfmt_misc binfmt_misc $handlers
    [ -e $handlers/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64
    [ -e $handlers/qemu-aarch64 ] || stop "expected $handlers/qemu-aarch64, found none: ARM programs cannot start here"
    unpack_root "$1/arm64" arm64 python3,python3-venv,gcc,libc6-dev
}

on() { # KERNEL COMMAND...
    QEMU_CPU=${cpu[$1]} OPENBLAS_CORETYPE=$1 inside "${@:2}"
}

in_use() { # KERNEL
    on "$1" python -c 'import numpy, threadpoolctl
print(*(blas["architecture"].upper() for blas in threadpoolctl.threadpool_info()))'
}

main "$@"
