/* hookwatch: stands in the place of a hook, runs the hook itself (this file's name and ".real") as slurmd would, and
   appends to LOG how long slurmd would have waited: until it has ended and nobody holds its output open. A file
   NOFORK.<node> has every fork of the hook fail, as on a machine that can make no more processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int no_forks(void) {
#define FAILS(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FAILS(SYS_clone),
        FAILS(SYS_clone3),
#ifdef SYS_fork
        FAILS(SYS_fork),
        FAILS(SYS_vfork),
#endif
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int count, char **arguments) {
    const char *node = getenv("SLURMD_NODENAME"), *job = getenv("SLURM_JOB_ID");
    const char *event = strrchr(arguments[0], '/');
    char hook[4096], mark[4096], line[256], buffer[4096];
    int ends[2], status = 1 << 8;
    ssize_t got;
    double start = now();
    event = event ? event + 1 : arguments[0];
    snprintf(hook, sizeof hook, "%s.real", arguments[0]);
    snprintf(mark, sizeof mark, NOFORK ".%s", node ? node : "");
    if (count < 1 || pipe(ends)) return 1;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        if (access(mark, F_OK) == 0 && no_forks()) _exit(126);
        execv(hook, (char *[]){hook, NULL});
        _exit(127);
    }
    close(ends[1]);
    while ((got = read(ends[0], buffer, sizeof buffer)) > 0)
        if (write(1, buffer, (size_t)got) < 0) break;
    if (child > 0) waitpid(child, &status, 0);
    int length = snprintf(line, sizeof line, "%s %s %s %.3f %d\n", event, node ? node : "-", job ? job : "-",
                          now() - start, WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    int log = open(LOG, O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (log >= 0 && write(log, line, (size_t)length) < 0) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
