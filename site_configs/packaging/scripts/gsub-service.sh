installed() { # VERSION-BEFORE, empty for a first time
    make_user gsub-act gsub-act.conf
    # Slurm's user is called slurm nearly everywhere; a group of that name is never made here.
    if getent group slurm >/dev/null; then
        # Where users come from a directory, it is that which has to know; the unit adds the group meanwhile.
        usermod --append --groups slurm gsub || say "the user gsub could not be put into the group slurm"
    else
        say "there is no group slurm, which gsubd's unit names: gsubd does not start before the unit has the"
        say "group of SlurmUser; see 'SlurmUser in another group' in docs/packages.md"
    fi
    install -d -o gsub -g gsub -m 0750 /var/lib/gsub
    enable_unit gsubd.service "$1"
    # Without a site file it knows neither cluster nor address: `gsub admin install` writes one and starts it.
    if [ -e /etc/gsub/site.toml ]; then start_unit gsubd.service; fi
    if running_systemd && systemctl --quiet is-active gsub-act.service; then start_unit gsub-act.service; fi
    if [ -n "$1" ]; then
        say "the shim that slurmctld runs is as it was; to bring it up to date: gsub admin upgrade"
    else
        say "Slurm is as it was; next: gsub admin install --plan"
    fi
}
resumed() { start_unit gsubd.service; }
upgrading() { :; }
removing() {
    refuse_while_named gsub-service
    take_back controller
    for unit in gsub-act.service gsubd.service; do stop_unit "$unit"; disable_unit "$unit"; done
}
removed() { if running_systemd; then systemctl daemon-reload || true; fi; }
purged() {
    forget_unit gsubd.service
    forget_unit gsub-act.service
    drop_placed "$LIBEXEC"/*.lua
    take_away /var/lib/gsub /var/lib/gsub-act /run/gsub /run/gsub-act
    drop_user gsub-act
    drop_kept
}
