#!/usr/bin/env bash
# Runs the README's first command and the numerical tests with OpenBLAS's kernels for 64-bit ARM machines, which qemu
# emulates. Run it by hand, never in CI, because one kernel can take hours. On a bare Debian machine, as root:
#
#     tests/arm.sh [FOLDER]                  all kernels; the last lines are a table
#     tests/arm.sh FOLDER KERNEL COMMAND...  one command on one kernel, in this checkout, after a run with FOLDER
#
# FOLDER stores Debian's files for later runs; without it, everything is temporary. Property tests use all examples, because
# fewer would not help: most of the time under emulation is spent on arithmetic at real widths.
set -euo pipefail
# shellcheck source=tests/debian_root.sh
source "$(dirname "$0")/debian_root.sh"

names=(ARMV8 NEOVERSEN1 NEOVERSEV1)
# A CPU with the kernel's instructions. NEOVERSEV1's vectors have 256 bits, so `max` must not use its 512 bits. `max`
# also runs Python two to three times slower if it authenticates pointers, which is not needed here.
declare -A cpu=(
    [ARMV8]=cortex-a57
    [NEOVERSEN1]=neoverse-n1
    [NEOVERSEV1]='max,sve-max-vq=2,pauth=off'
)

prepare() { # FOLDER
    local handlers=/proc/sys/fs/binfmt_misc
    # qemu's handler lets the system start ARM programs, including those that other ARM programs start.
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
