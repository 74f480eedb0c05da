ENVIRONMENT=/opt/gsub
INSTALLED=/var/lib/gsub-install # the journal of `gsub admin install`; it takes that away itself when all is taken back

compile() { # without it each `gsub` of a user reads the sources: slower, and no worse
    "$ENVIRONMENT/bin/python3" -I -m compileall -q -f --invalidation-mode unchecked-hash "$ENVIRONMENT/lib" >/dev/null 2>&1 ||
        {
            forget_compiled # an earlier version's would be run in the place of these
            say "the Python files could not be compiled: is the disk full? gsub starts slower"
        }
}

forget_compiled() { find "$ENVIRONMENT" -depth -name __pycache__ -type d -exec rm -rf {} + 2>/dev/null || true; }

tell_number() { # systemd-sysusers takes another number, and says nothing, where 890 is taken
    [ -e "$KEEP/user-gsub" ] && [ ! -e /etc/sysusers.d/gsub.conf ] || return 0
    number=$(id -u gsub) || return 0
    [ "$number" = 890 ] || say "the user gsub has the number $number, not 890: it must be the same on all hosts"
}

installed() { make_user gsub gsub.conf; tell_number; compile; }
resumed() { compile; }
upgrading() { forget_compiled; }
removing() { refuse_while_named gsub; forget_compiled; }
removed() { :; }
purged() {
    drop_placed "$LIBEXEC"
    take_away "$ENVIRONMENT" /etc/gsub
    if [ -e "$INSTALLED/journal.jsonl" ] && [ -z "${GSUB_REMOVE_ANYWAY:-}" ]; then
        say "$INSTALLED stays: not all was taken back, and it has the files of this host as they were before gsub"
    else
        take_away "$INSTALLED"
    fi
    [ -d /opt ] || mkdir -m 0755 /opt # base-files made it for no package, so dpkg takes it along when it is empty
    drop_user gsub
    drop_kept
}
