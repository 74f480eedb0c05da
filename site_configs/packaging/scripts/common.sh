# What the scripts of all three packages share. POSIX sh, run as root by dpkg or rpm, each step so that it may be run again.
LIBEXEC=/usr/libexec/gsub
KEEP=/var/lib/gsub-package # which users these scripts have made; the others are the site's
SLURM="/etc/slurm/slurm.conf /etc/slurm-llnl/slurm.conf /usr/local/etc/slurm.conf /opt/slurm/etc/slurm.conf
    /var/spool/slurmd/conf-cache/slurm.conf /var/spool/slurm/d/conf-cache/slurm.conf /run/slurm/conf/slurm.conf"

say() { printf 'gsub: %s\n' "$*" >&2; }

still_named() { # tells where Slurm names our hooks or shim, or has our block of lines; fails where it does not
    [ -z "${GSUB_REMOVE_ANYWAY:-}" ] || return 1
    read=
    set -- "$(sed -n 's/^[[:space:]]*conf[[:space:]]*=[[:space:]]*"\([^"]*\)".*/\1/p' /etc/gsub/site.toml 2>/dev/null | head -n 1)"
    for conf in "$1" $SLURM; do
        [ -r "$conf" ] || continue
        read=1
        for file in "$conf" "${conf%/*}"/*.conf "${conf%/*}"/*/*.conf; do
            if grep -qs -e "^[^#]*$LIBEXEC/" -e '^# *>>> gsub' "$file"; then printf '%s\n' "$file"; return 0; fi
        done
        if grep -vs '^[[:space:]]*--' "${conf%/*}/job_submit.lua" | grep -q "$LIBEXEC/"; then
            printf '%s\n' "${conf%/*}/job_submit.lua"
            return 0
        fi
    done
    # In another place then: Slurm's own command may know it.
    [ -z "$read" ] && timeout -k 1 5 scontrol show config 2>/dev/null | grep -q "$LIBEXEC/" && echo "slurmctld's configuration"
}

refuse_while_named() { # PACKAGE: what Slurm is told to run is to be there, or jobs fail and nodes are drained
    [ -d "$LIBEXEC" ] || return 0 # a login node: its slurm.conf names what other hosts have
    named=$(still_named) || return 0
    say "$1 stays: $named still names gsub, whose hooks and shim would be gone; that can drain nodes."
    say "First, on slurmctld's host: gsub admin rollback. Then remove $1 again (GSUB_REMOVE_ANYWAY=1 skips this)."
    exit 1
}

take_back() { # ROLE: what `gsub admin install` has put on this host, when Slurm has let go of it
    GSUB_RECEIPTS=off timeout -k 5 120 /opt/gsub/bin/gsub admin rollback --role "$1" --yes </dev/null >&2 ||
        say "not all of gsub could be taken off this host; see above"
}

make_user() { # USER FILE: by sysusers.d, unless the site has made it
    getent passwd "$1" >/dev/null && return 0
    mkdir -p "$KEEP"
    systemd-sysusers "$2"
    : >"$KEEP/user-$1"
}

drop_user() { # USER: only one that make_user has made
    [ -e "$KEEP/user-$1" ] || return 0
    if getent passwd "$1" >/dev/null; then userdel "$1" >/dev/null 2>&1 || say "the user $1 stays: userdel failed"; fi
    if getent group "$1" >/dev/null; then groupdel "$1" >/dev/null 2>&1 || true; fi
    rm -f "$KEEP/user-$1"
}

drop_kept() { rmdir "$KEEP" 2>/dev/null || true; }

running_systemd() { [ -d /run/systemd/system ]; }

enable_unit() { # UNIT: as the distribution does it, so that what an administrator has disabled stays so
    if command -v deb-systemd-helper >/dev/null; then
        deb-systemd-helper unmask "$1" >/dev/null || true
        if deb-systemd-helper --quiet was-enabled "$1"; then
            deb-systemd-helper enable "$1" >/dev/null || true
        else
            deb-systemd-helper update-state "$1" >/dev/null || true
        fi
    elif [ -z "$2" ]; then
        systemctl --no-reload preset "$1" >/dev/null 2>&1 || true
    fi
    if running_systemd; then systemctl daemon-reload || true; fi
}

start_unit() { # UNIT: nothing that fails here fails the installation; Slurm needs none of it
    running_systemd && systemctl --quiet is-enabled "$1" 2>/dev/null || return 0
    if command -v deb-systemd-invoke >/dev/null; then # which asks policy-rc.d
        deb-systemd-invoke restart "$1" >/dev/null || say "$1 does not start; see: systemctl status $1"
    else
        systemctl restart "$1" || say "$1 does not start; see: systemctl status $1"
    fi
}

stop_unit() { # UNIT
    if running_systemd; then systemctl stop "$1" || true; fi
}

disable_unit() { # UNIT, before its file goes
    if ! command -v deb-systemd-helper >/dev/null; then systemctl --no-reload disable "$1" >/dev/null 2>&1 || true; fi
}

forget_unit() { # UNIT, after its file went for good
    if command -v deb-systemd-helper >/dev/null; then deb-systemd-helper purge "$1" >/dev/null || true; fi
    if running_systemd; then systemctl daemon-reload || true; fi
}

take_away() { # PATH...: one that cannot go (a file system of its own) must not leave the package half purged
    rm -rf "$@" || say "not all of it is gone: $*"
}

drop_placed() { # PATH...: what `gsub admin install` has put there
    if named=$(still_named); then say "$LIBEXEC stays: $named names it"; return 0; fi
    take_away "$@"
    rmdir "$LIBEXEC" 2>/dev/null || true
}
