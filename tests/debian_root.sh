# shellcheck shell=bash
# The common code of arm.sh and other_blas.sh: another Debian in a folder, commands that run in it, a table of results.
# Both scripts define the `names` to test, and functions that `prepare` a folder, run a command `on` a name, and check
# whether a name is `in_use` by NumPy. Then they call `main`. image.sh uses only the Debian in a folder.
release=trixie # the first Debian release with NumPy 2, and with a Python that the newest NumPy supports
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv_options=() table=() status=0

main() { # [FOLDER [NAME COMMAND...]]
    local folder name
    [ "$(id -u)" = 0 ] || stop "expected root (it installs packages, mounts and changes the root), got $(id -un)"
    if [ $# = 0 ]; then
        temporary=$(mktemp -d)
        trap 'rm -rf "$temporary"' EXIT
        folder=$temporary
    else
        mkdir -p "$1"
        folder=$(cd "$1" && pwd)
        shift
        [ $# != 1 ] || stop "expected FOLDER NAME COMMAND..., got no command"
        [[ $# = 0 || " ${names[*]} " = *" $1 "* ]] || stop "expected one of ${names[*]}, got $1"
    fi
    prepare "$folder"
    if [ $# != 0 ]; then
        on "$@"
        return
    fi
    for name in "${names[@]}"; do
        test_numbers "$name"
    done
    printf '\n%-12s %-8s %-42s %7s\n' "" README "tests of numbers" seconds
    printf '%s\n' "${table[@]}"
    return "$status"
}

stop() { echo "$(basename "$0"): $*" >&2 && exit 1; }

install_here() { # PACKAGE...: installs the packages that this machine lacks
    local package missing=()
    for package in "$@"; do
        dpkg -s "$package" > /dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] || { apt-get update -q && apt-get install -qy --no-install-recommends "${missing[@]}"; }
}

unpack_root() { # ROOT ARCHITECTURE PACKAGE,PACKAGE...: unpacks once; later runs use ROOT again
    local package
    root=$1
    install_here ca-certificates debootstrap
    # Packages are only unpacked, because configuring them under emulation takes ten minutes and is not needed.
    if [ ! -e "$root/checkout" ]; then
        rm -rf "$root"
        debootstrap --foreign --arch="$2" --variant=minbase --include="$3" "$release" "$root"
        for package in "$root"/var/cache/apt/archives/*.deb; do
            dpkg-deb --extract "$package" "$root"
        done
        mkdir "$root/checkout"
    fi
    # With this machine's host names and certificates, pip in ROOT reaches the same index as here.
    cp /etc/{resolv.conf,hosts,passwd,group} "$root/etc/"
    mkdir -p "$root/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
}

# Runs a command in $root, in this checkout, which is read-only for the command. The mounts end with the command.
inside() { # COMMAND...
    # shellcheck disable=SC2016
    unshare --mount bash -ec '
        root=$1 checkout=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount --bind -o ro "$checkout" "$root/checkout"
        unset PYTHONPATH PYTHONHOME TMPDIR
        export PATH=/venv/bin:/usr/bin:/usr/sbin HOME=/root LANG=C.UTF-8 PIP_DISABLE_PIP_VERSION_CHECK=1
        exec chroot "$root" sh -c "cd /checkout && exec \"\$@\"" - "$@"
    ' - "$root" "$checkout" "$@"
}

# Runs the README's first command in a new environment, then the numerical tests, and adds a line to the table.
test_numbers() { # NAME
    local name=$1 readme=ok first found counts start=$SECONDS log=$root/$1.log
    first=$(sed -n '/^pip install \. && npformer classify /{p;q}' "$checkout/README.md")
    [ -n "$first" ] || stop "README.md: expected a line 'pip install . && npformer classify ...', found none"
    printf '\n== %s\n' "$name"
    ln -sf gcc "$root/usr/bin/cc" # for the port in C; Debian makes this link only when it configures the package
    on "$name" python3 -m venv --clear "${venv_options[@]}" /venv
    on "$name" sh -c "$first" || readme=failed
    found=$(in_use "$name") || found="none, as Python stopped"
    [ "$found" = "$name" ] || stop "expected NumPy to run $name, got $found"
    on "$name" npformer info || readme=failed
    on "$name" pip install -q ".[test,translate]"
    on "$name" python -m pytest -m numbers -rs -p no:cacheprovider 2>&1 | tee "$log" || true
    # pytest's last line without the number of deselected tests, for example "2 failed, 500 passed".
    counts=$(sed -nE 's/^([0-9]+ (passed|failed|error).*) in [0-9.]+s.*/\1/; T; s/, [0-9]+ deselected//; p' "$log")
    [[ $readme = ok && $counts = *passed* && $counts != *failed* && $counts != *error* ]] || status=1
    table+=("$(printf '%-12s %-8s %-42s %7d' "$name" "$readme" "${counts:-none ended}" $((SECONDS - start)))")
}
