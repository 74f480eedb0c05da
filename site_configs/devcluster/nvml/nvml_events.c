/* NVML's event sets, with Xid events: lines that are appended to a GPU's file `xid`. */
#include "library.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    struct view view;
    TRY(look_gpu(device, __func__, &view));
    if (types == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *types = NVML_EVENT_XID;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    struct text state;
    TRY(look_node(__func__, &state));
    if (set == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    pthread_mutex_lock(&library.lock);
    for (unsigned int i = 0; i < MAX_EVENT_SETS && result != NVML_SUCCESS; i++)
        if (!library.sets[i].used) {
            library.sets[i] = (struct nvmlEventSet_st){.used = true};
            *set = &library.sets[i];
            result = NVML_SUCCESS;
        }
    pthread_mutex_unlock(&library.lock);
    return result;
}

static bool valid_set(const struct nvmlEventSet_st *set) /* under the lock */
{
    return within(set, library.sets, sizeof library.sets, sizeof *set) && set->used;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    pthread_mutex_lock(&library.lock);
    bool valid = valid_set(set);
    if (valid)
        set->used = false;
    pthread_mutex_unlock(&library.lock);
    return valid ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static int open_xid(unsigned int number, struct stat *status) /* under the lock; -1 if there is no such file */
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%u/xid", library.node, number);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd != -1 && (fstat(fd, status) == -1 || !S_ISREG(status->st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Events count from here on: what the file holds already is the past. */
EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    struct view view;
    struct stat status;
    TRY(look_gpu(device, __func__, &view));
    if ((types & NVML_EVENT_XID) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&library.lock);
    bool valid = valid_set(set);
    if (valid) {
        int fd = open_xid(device->number, &status);
        set->types[device->number] |= types;
        set->offset[device->number] = fd == -1 ? 0 : status.st_size;
        if (fd != -1)
            close(fd);
    }
    pthread_mutex_unlock(&library.lock);
    return valid ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* The next Xid of a GPU: a whole line that starts with a number. Others are passed over. */
static bool next_xid(nvmlEventSet_t set, unsigned int number, nvmlEventData_t *data) /* under the lock */
{
    char line[64];
    struct stat status;
    bool found = false;
    int fd = open_xid(number, &status);
    if (fd == -1)
        return false;
    if (status.st_size < set->offset[number]) /* the file was cut: start again */
        set->offset[number] = 0;
    while (!found) {
        ssize_t got = pread(fd, line, sizeof line, set->offset[number]);
        const char *end = got > 0 ? memchr(line, '\n', (size_t)got) : NULL;
        if (got <= 0 || (end == NULL && got < (ssize_t)sizeof line))
            break; /* nothing, or a line that is still being written */
        set->offset[number] += end != NULL ? end - line + 1 : got;
        unsigned long long code = 0;
        const char *at = line;
        for (; end != NULL && at < end && *at >= '0' && *at <= '9' && code < 1000000; at++)
            code = code * 10 + (unsigned long long)(*at - '0');
        found = end != NULL && at > line && at == end;
        *data = (nvmlEventData_t){&library.gpu[number], NVML_EVENT_XID, code, NVML_NO_INSTANCE, NVML_NO_INSTANCE};
    }
    close(fd);
    return found;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    struct text state;
    uint64_t deadline = now_ms() + timeout_ms;
    if (data == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (;;) {
        TRY(look_node(__func__, &state));
        pthread_mutex_lock(&library.lock);
        bool valid = valid_set(set), found = false;
        for (unsigned int number = 0; valid && number < MAX_GPUS && !found; number++)
            found = (set->types[number] & NVML_EVENT_XID) != 0 && next_xid(set, number, data);
        pthread_mutex_unlock(&library.lock);
        if (!valid || found)
            return found ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
        if (now_ms() >= deadline)
            return NVML_ERROR_TIMEOUT;
        nap(HANG_POLL_MS / 2);
    }
}
