/* NVML's memory of the last seconds: samples of the utilisation, and a counter of energy.
 *
 * A real driver samples all the time. Here a thread does, from the first question on and as long as the library is
 * initialised, every `sample_period_ms` of the node's state, and each question does once more; without that key the
 * questions are not supported. When a load comes or goes between two samples, its directory tells when. A GPU whose
 * files have not changed and that nobody loads is not read again: eight idle GPUs cost 16 stat(2) a period.
 */
#include "library.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { RING = 120, MIN_PERIOD_MS = 20, SETTLED_US = 2000000 }; /* RING: about as many samples as real drivers keep */

struct memory {
    pthread_mutex_t lock;
    unsigned int count, next;
    nvmlSample_t ring[RING];
    uint64_t nanojoules, at; /* up to when, in microseconds since the epoch */
    uint64_t changed;        /* the last change of its files */
    struct work work;
};

static struct {
    pthread_mutex_t lock;
    bool running;
    struct memory gpu[MAX_GPUS];
} samples = {.lock = PTHREAD_MUTEX_INITIALIZER, .gpu = {[0 ... MAX_GPUS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}}};

static uint64_t microseconds(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_nsec / 1000;
}

/* When the state or the loads of a GPU last changed. */
static uint64_t change_of(unsigned int number)
{
    static const char *const NAMES[] = {"state", "load"};
    uint64_t last = 0;
    for (size_t i = 0; i < 2; i++) {
        char suffix[32], path[PATH_BYTES];
        struct stat status;
        snprintf(suffix, sizeof suffix, "/%u/%s", number, NAMES[i]);
        if (in_node(suffix, path, sizeof path) == NVML_SUCCESS && stat(path, &status) == 0 &&
            microseconds(&status.st_mtim) > last)
            last = microseconds(&status.st_mtim);
    }
    return last;
}

/* Count the work done up to `now`, and remember it as a sample. */
static void put(struct memory *memory, uint64_t now)
{
    if (memory->at != 0 && now > memory->at)
        memory->nanojoules += memory->work.power_mw * (now - memory->at); /* mW x us */
    memory->at = now;
    if (!memory->work.told)
        return;
    memory->ring[memory->next] = (nvmlSample_t){now, {.uiVal = (unsigned int)memory->work.utilization}};
    memory->next = (memory->next + 1) % RING;
    memory->count += memory->count < RING;
}

/* Sample a GPU; under its lock. */
static void take(unsigned int number, struct memory *memory)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    uint64_t now = microseconds(&time), changed = change_of(number);
    if (now <= memory->at) /* the clock was set back: there is no telling what time has passed */
        memory->at = 0;
    bool settled = changed == memory->changed && changed + SETTLED_US < now;
    if (memory->at == 0 || !memory->work.idle || !settled) {
        struct work work;
        work_of(number, &work);
        if (memory->at != 0 && changed > memory->at && changed < now)
            put(memory, changed); /* up to then it did what it had done */
        memory->work = work;
        memory->changed = changed;
    }
    put(memory, now);
}

static nvmlReturn_t period_us(uint64_t *period)
{
    char path[PATH_BYTES];
    static _Thread_local struct text state;
    TRY(in_node("/state", path, sizeof path));
    TRY(text_read(path, &state));
    TRY(text_number(&state, "sample_period_ms", period));
    if (*period < MIN_PERIOD_MS || *period > 60000)
        return NVML_ERROR_UNKNOWN;
    *period *= 1000;
    return NVML_SUCCESS;
}

static void *run(void *unused)
{
    (void)unused;
    uint64_t period;
    while (period_us(&period) == NVML_SUCCESS) {
        for (unsigned int i = 0; i < library.count; i++) {
            struct memory *memory = &samples.gpu[library.order[i]];
            pthread_mutex_lock(&memory->lock);
            take(library.order[i], memory);
            pthread_mutex_unlock(&memory->lock);
        }
        nap((unsigned int)(period / 1000));
    }
    pthread_mutex_lock(&samples.lock);
    samples.running = false;
    pthread_mutex_unlock(&samples.lock);
    return NULL;
}

/* See that the thread runs. */
static nvmlReturn_t remember(void)
{
    uint64_t period;
    TRY(period_us(&period));
    pthread_mutex_lock(&samples.lock);
    if (!samples.running) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        samples.running = pthread_create(&thread, &attributes, run, NULL) == 0;
        pthread_attr_destroy(&attributes);
    }
    bool running = samples.running;
    pthread_mutex_unlock(&samples.lock);
    return running ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

/* Without `out`: how many there may be at most. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned int type, unsigned long long after,
                                         unsigned int *value_type, unsigned int *count, nvmlSample_t *out)
{
    struct view view;
    TRY(look_gpu(device, __func__, &view));
    if (type != NVML_GPU_UTILIZATION_SAMPLES || mig_enabled(&view))
        return NVML_ERROR_NOT_SUPPORTED;
    if (value_type == NULL || count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(remember());
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    unsigned int room = out == NULL ? 0 : *count, found = 0;
    struct memory *memory = &samples.gpu[device->number];
    pthread_mutex_lock(&memory->lock);
    if (room > 0)
        take(device->number, memory);
    for (unsigned int i = 0; i < memory->count && found < room; i++) {
        const nvmlSample_t *sample = &memory->ring[(memory->next + RING - memory->count + i) % RING];
        if (sample->timeStamp > after)
            out[found++] = *sample;
    }
    pthread_mutex_unlock(&memory->lock);
    *count = out == NULL ? RING : found;
    return out != NULL && found == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    struct view view;
    TRY(look_gpu(device, __func__, &view));
    if (millijoules == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(remember());
    struct memory *memory = &samples.gpu[device->number];
    pthread_mutex_lock(&memory->lock);
    take(device->number, memory);
    *millijoules = memory->nanojoules / 1000000;
    pthread_mutex_unlock(&memory->lock);
    return NVML_SUCCESS;
}
