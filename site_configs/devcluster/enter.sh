#!/bin/sh
# enter.sh ROOT BINDS CWD CMD [ARG...]: run CMD in the chroot ROOT. Called in a mount namespace of its own, so the
# bind mounts end with the process and the machine's mount table never shows them. BINDS is their fstab(5), its targets
# as the chroot sees them: one mount for all, for with one each entering took longer than most commands do.
set -eu
root=$1 binds=$2 cwd=$3
shift 3
mount --all --fstab "$binds" --target-prefix "$root"
exec chroot "$root" /bin/sh -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$cwd" "$@"
