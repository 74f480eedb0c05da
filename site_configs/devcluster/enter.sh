#!/bin/sh
# enter.sh ROOT BINDS CWD CMD [ARG...]: run CMD in the chroot ROOT. Called in a mount namespace of its own, so the
# bind mounts end with the process and the machine's mount table never shows them. BINDS has a line "SOURCE TARGET" each.
set -eu
root=$1 binds=$2 cwd=$3
shift 3
while read -r source target; do
    mount --rbind "$source" "$root$target"
done <"$binds"
exec chroot "$root" /bin/sh -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$cwd" "$@"
