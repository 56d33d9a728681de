#!/usr/bin/env bash
# Builds the image of examples/deploy/Dockerfile with buildah, and sends requests to a service in it. Run it by hand,
# never in CI, where tests/http/test_deploy.py runs the Dockerfile's steps without a builder. On a bare Debian machine,
# as root:
#
#     tests/image.sh [FOLDER]
#
# No image registry is used: a root of Debian's packages replaces the Dockerfile's base. FOLDER stores it and the images
# for later runs; without it, everything is temporary.
set -euo pipefail
# shellcheck source=tests/debian_root.sh
source "$(dirname "$0")/debian_root.sh"

[ "$(id -u)" = 0 ] || stop "expected root (it installs packages and changes the root), got $(id -un)"
service='' temporary=''
last_child() { # of the service's processes: each one starts the next, and the last is the service itself
    local last=$service child
    while read -r child _ <<< "$(cat /proc/"$last"/task/*/children)" && [ -n "$child" ]; do last=$child; done
    echo "$last"
}
# shellcheck disable=SC2329
clean_up() {
    [ -z "$service" ] || kill "$(last_child)"
    [ -z "$temporary" ] || rm -rf "$temporary"
}
trap clean_up EXIT
if [ $# = 0 ]; then
    temporary=$(mktemp -d)
    folder=$temporary
else
    mkdir -p "$1"
    folder=$(cd "$1" && pwd)
fi
install_here buildah curl
images() { buildah --root "$folder/images" --runroot "$folder/run" --storage-driver vfs "$@"; }
said() { # FIELD: prints a list in the built image's settings, one item per line
    images inspect --type image npformer | python3 -c '
import json, sys
print(*eval(sys.argv[1], {"config": json.load(sys.stdin)["Docker"]["config"]}), sep="\n")' "$1"
}

base=localhost/$(sed -n 's/^FROM \([^ ]*\)$/\1/p' "$checkout/examples/deploy/Dockerfile")
if ! images inspect --type image "$base" > "$folder/found" 2>&1; then
    unpack_root "$folder/debian" "$(dpkg --print-architecture)" python3,python3-venv
    ln -sf python3 "$root/usr/bin/python"
    rm -rf "$root"/var/cache/apt/archives
    empty=$(images from scratch)
    images add -q "$empty" "$root" /
    images config --env PATH=/usr/local/bin:/usr/bin:/bin "$empty"
    images commit -q --rm "$empty" "$base"
fi

start=$SECONDS
images build -q --isolation chroot --format docker --pull-never -f "$checkout/examples/deploy/Dockerfile" -t npformer "$checkout"
echo "built in $((SECONDS - start)) s"
container=$(images from --pull-never npformer)
mounted=$(images mount "$container")
for each in opt/npformer models ""; do
    echo "$(du -sm --apparent-size "$mounted/$each" | cut -f1) MB in /$each"
done

mapfile -t command < <(said 'config["Entrypoint"] + config["Cmd"]')
mapfile -t healthy < <(said 'config["Healthcheck"]["Test"][1:]')
in_container() { images run --isolation chroot "$container" -- "$@"; }
in_container "${command[@]}" > "$folder/log" 2>&1 &
service=$!
for _ in {1..100}; do
    sleep 0.5
    if in_container "${healthy[@]}" 2> "$folder/found"; then break; fi
done
answer=$(curl -sS -d '{"inputs": "I love ice cream"}' http://127.0.0.1:8080/predict) || { cat "$folder/log" && stop "no answer"; }
echo "$answer"
[[ $answer = *POSITIVE* ]] || stop "expected a label, got $answer"
user=$(stat -c %u:%g "/proc/$(last_child)")
[ "$user" = "$(said '[config["User"]]')" ] || stop "expected the service to run as $(said '[config["User"]]'), got $user"
kill -TERM "$(last_child)"
wait "$service" || stop "expected exit code 0 after SIGTERM, got $?"
service=''
images rm "$container" > "$folder/found"
echo "the image builds, serves as $user, and stops with exit code 0"
