installed() { # VERSION-BEFORE, empty for a first time
    systemd-tmpfiles --create gsub-noded.conf || say "systemd-tmpfiles failed: /run/gsub-noded and /var/spool/gsub must be there"
    enable_unit gsub-noded.service "$1"
    if [ -n "$1" ]; then
        say "the hooks that slurmd runs are as they were; to bring them up to date: gsub admin upgrade"
    else
        # Copies in $LIBEXEC that nothing names before slurm.conf does. A node that fails here is told of by the controller.
        GSUB_RECEIPTS=off timeout -k 5 120 /opt/gsub/bin/gsub admin install --role node --yes </dev/null >&2 ||
            say "the hooks are not in place; try again: gsub admin install --role node"
    fi
    start_unit gsub-noded.service
}
resumed() { start_unit gsub-noded.service; }
upgrading() { :; }
removing() {
    refuse_while_named gsub-node
    take_back node
    stop_unit gsub-noded.service
    disable_unit gsub-noded.service
}
removed() { if running_systemd; then systemctl daemon-reload || true; fi; }
purged() {
    forget_unit gsub-noded.service
    drop_placed "$LIBEXEC"/prolog "$LIBEXEC"/epilog "$LIBEXEC"/task_prolog "$LIBEXEC"/prolog.d "$LIBEXEC"/epilog.d
    take_away /var/spool/gsub /run/gsub-noded
    drop_kept
}
