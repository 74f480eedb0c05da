/* NVML's memory of the last seconds: samples of the utilisation, and a counter of energy.
 *
 * A real driver samples all the time. Here a thread does, from the first question on and as long as the library is
 * initialised, every `sample_period_ms` of the node's state; without that key the questions are not supported. A GPU
 * whose files have not changed and that nobody loads is not read again: eight idle GPUs cost 16 stat(2) a period.
 */
#include "library.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { RING = 120, MIN_PERIOD_MS = 20, SETTLED_S = 2 }; /* RING: about as many samples as real drivers keep */

struct memory {
    unsigned int count, next;
    nvmlSample_t ring[RING];
    uint64_t microjoules, taken; /* up to when, by the monotonic clock, in microseconds */
    bool known, idle;
    struct timespec state_changed, loads_changed;
    uint64_t power_mw, utilization;
    bool told; /* whether NVML would tell the utilisation */
};

static struct {
    pthread_mutex_t lock;
    bool running;
    struct memory gpu[MAX_GPUS];
} samples = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t microseconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Whether a file is another than last time, or so young that it may still be written. */
static bool changed(const char *directory, const char *name, struct timespec *last)
{
    char path[PATH_BYTES];
    struct stat status;
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path || stat(path, &status) != 0)
        return true;
    bool same = status.st_mtim.tv_sec == last->tv_sec && status.st_mtim.tv_nsec == last->tv_nsec;
    *last = status.st_mtim;
    return !same || status.st_mtim.tv_sec + SETTLED_S >= (time_t)(microseconds(CLOCK_REALTIME) / 1000000);
}

/* One look at a GPU, by this library's own questions as anyone may ask them. */
static void measure(unsigned int number, struct memory *memory)
{
    char suffix[32], directory[PATH_BYTES];
    nvmlUtilization_t rates = {0, 0};
    unsigned int milliwatts = 0, processes = 0;
    snprintf(suffix, sizeof suffix, "/%u", number);
    if (in_node(suffix, directory, sizeof directory) != NVML_SUCCESS)
        return;
    bool state = changed(directory, "state", &memory->state_changed);
    bool loads = changed(directory, "load", &memory->loads_changed);
    if (memory->known && memory->idle && !state && !loads)
        return;
    memory->told = nvmlDeviceGetUtilizationRates(&library.gpu[number], &rates) == NVML_SUCCESS;
    if (nvmlDeviceGetPowerUsage(&library.gpu[number], &milliwatts) != NVML_SUCCESS)
        milliwatts = 0;
    memory->utilization = rates.gpu;
    memory->power_mw = milliwatts;
    memory->idle = nvmlDeviceGetComputeRunningProcesses_v3(&library.gpu[number], &processes, NULL) == NVML_SUCCESS;
    memory->known = true;
}

/* The energy up to now: the counter never falls, as it is what `take` will add. */
static uint64_t energy(const struct memory *memory, uint64_t now)
{
    return memory->microjoules + (memory->taken == 0 ? 0 : memory->power_mw * (now - memory->taken) / 1000);
}

static void take(void)
{
    static struct memory copy; /* of the one thread: a hanging question must not hold the lock */
    uint64_t now = microseconds(CLOCK_REALTIME);
    for (unsigned int i = 0; i < library.count; i++) {
        unsigned int number = library.order[i];
        struct memory *memory = &samples.gpu[number];
        pthread_mutex_lock(&samples.lock);
        copy = *memory;
        pthread_mutex_unlock(&samples.lock);
        uint64_t power_mw = copy.power_mw;
        measure(number, &copy);
        if (copy.told) {
            copy.ring[copy.next] = (nvmlSample_t){now, {.uiVal = (unsigned int)copy.utilization}};
            copy.next = (copy.next + 1) % RING;
            copy.count += copy.count < RING;
        }
        uint64_t taken = microseconds(CLOCK_MONOTONIC);
        copy.microjoules += copy.taken == 0 ? 0 : power_mw * (taken - copy.taken) / 1000; /* mW x us = nJ */
        copy.taken = taken;
        pthread_mutex_lock(&samples.lock);
        *memory = copy;
        pthread_mutex_unlock(&samples.lock);
    }
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
        take();
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
        memset(samples.gpu, 0, sizeof samples.gpu);
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
    pthread_mutex_lock(&samples.lock);
    for (unsigned int i = 0; i < memory->count && found < room; i++) {
        const nvmlSample_t *sample = &memory->ring[(memory->next + RING - memory->count + i) % RING];
        if (sample->timeStamp > after)
            out[found++] = *sample;
    }
    pthread_mutex_unlock(&samples.lock);
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
    pthread_mutex_lock(&samples.lock);
    *millijoules = energy(&samples.gpu[device->number], microseconds(CLOCK_MONOTONIC)) / 1000;
    pthread_mutex_unlock(&samples.lock);
    return NVML_SUCCESS;
}
