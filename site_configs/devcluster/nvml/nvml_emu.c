/* libnvidia-ml.so.1 for machines without a GPU: the NVML entry points that gsub uses, answered from files.
 *
 * $GSUB_EMU_GPUS names the root; $GSUB_EMU_NODE, else $SLURMD_NODENAME, the node. Both are read in nvmlInit.
 * What is not here is NVML_ERROR_FUNCTION_NOT_FOUND to nvidia-ml-py, exactly as with an old driver.
 *
 * Handles are addresses of static objects, so a stale or invented one is recognised and nothing is ever freed.
 */
#include "emu.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MIB (1024ULL * 1024ULL)
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        nvmlReturn_t try_result = (call);                                                                              \
        if (try_result != NVML_SUCCESS)                                                                                \
            return try_result;                                                                                         \
    } while (0)

enum { WHOLE_GPU = -1, MAX_EVENT_SETS = 64 };

struct nvmlDevice_st {
    unsigned int number; /* directory and device file: GPU i is nvidia<i> */
    int mig;             /* slot of a MIG instance, or WHOLE_GPU */
};

struct nvmlEventSet_st {
    bool used;
    unsigned long long types[MAX_GPUS];
    off_t offset[MAX_GPUS]; /* of the next unread byte in the file xid */
};

struct view { /* one device as its files are now */
    const struct nvmlDevice_st *device;
    struct text state;
    struct mig mig;
    char directory[PATH_BYTES]; /* of the GPU; ends without a slash */
};

static struct {
    pthread_mutex_t lock;
    unsigned int users;
    unsigned int count;
    struct nvmlDevice_st gpu[MAX_GPUS];
    struct nvmlDevice_st mig[MAX_GPUS][MAX_MIGS];
    bool present[MAX_GPUS];            /* by device number */
    unsigned int order[MAX_GPUS];      /* NVML index -> device number */
    struct nvmlEventSet_st sets[MAX_EVENT_SETS];
    char node[PATH_BYTES - 64];
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the library ---- */

static nvmlReturn_t node_path(char *out, size_t size)
{
    const char *root = getenv("GSUB_EMU_GPUS"), *node = getenv("GSUB_EMU_NODE");
    if (node == NULL || *node == '\0')
        node = getenv("SLURMD_NODENAME");
    if (root == NULL || *root == '\0' || node == NULL || *node == '\0' || *node == '.' || strchr(node, '/') != NULL)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return snprintf(out, size, "%s/%s", root, node) < (int)size ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

/* NVML orders GPUs by PCI address, which need not be the order of the device files. */
static void enumerate(void)
{
    uint64_t rank[MAX_GPUS];
    char path[PATH_BYTES];
    static struct text state; /* under the lock */
    library.count = 0;
    for (unsigned int number = 0; number < MAX_GPUS; number++) {
        struct span value;
        struct pci pci = {0, number, 0};
        library.gpu[number] = (struct nvmlDevice_st){number, WHOLE_GPU};
        for (int slot = 0; slot < MAX_MIGS; slot++)
            library.mig[number][slot] = (struct nvmlDevice_st){number, slot};
        snprintf(path, sizeof path, "%s/%u/state", library.node, number);
        library.present[number] = text_read(path, &state) == NVML_SUCCESS;
        if (!library.present[number])
            continue;
        if (text_find(&state, "pci", &value))
            span_pci(value, &pci);
        uint64_t key = (uint64_t)pci.domain << 32 | pci.bus << 16 | pci.device << 8;
        unsigned int at = library.count++;
        for (; at > 0 && rank[at - 1] > key; at--) {
            rank[at] = rank[at - 1];
            library.order[at] = library.order[at - 1];
        }
        rank[at] = key;
        library.order[at] = number;
    }
}

static nvmlReturn_t initialise(const char *function)
{
    char node[sizeof library.node], path[PATH_BYTES];
    struct text state;
    TRY(node_path(node, sizeof node));
    snprintf(path, sizeof path, "%s/state", node);
    nvmlReturn_t result = text_enter(path, function, &state);
    if (result != NVML_SUCCESS)
        return result == NVML_ERROR_GPU_IS_LOST ? NVML_ERROR_DRIVER_NOT_LOADED : result;
    pthread_mutex_lock(&library.lock);
    if (library.users++ == 0) {
        memcpy(library.node, node, sizeof node);
        enumerate();
    }
    pthread_mutex_unlock(&library.lock);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return initialise(__func__);
}

/* The path `NODE` + suffix, if the library is initialised. */
static nvmlReturn_t in_node(const char *suffix, char *out, size_t size)
{
    pthread_mutex_lock(&library.lock);
    bool ready = library.users > 0;
    if (ready)
        snprintf(out, size, "%s%s", library.node, suffix);
    pthread_mutex_unlock(&library.lock);
    return ready ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t look_node(const char *function, struct text *out)
{
    char path[PATH_BYTES];
    TRY(in_node("/state", path, sizeof path));
    return text_enter(path, function, out);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    struct text state;
    TRY(look_node(__func__, &state));
    pthread_mutex_lock(&library.lock);
    if (library.users > 0 && --library.users == 0)
        memset(library.sets, 0, sizeof library.sets);
    pthread_mutex_unlock(&library.lock);
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    return error_text(result);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    struct text state;
    TRY(look_node(__func__, &state));
    return text_string(&state, "driver_version", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    struct text state;
    TRY(look_node(__func__, &state));
    return text_string(&state, "nvml_version", version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct text state;
    uint64_t value;
    TRY(look_node(__func__, &state));
    TRY(text_number(&state, "cuda_version", &value));
    if (version == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = (int)value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* ---- handles ---- */

static bool within(const void *pointer, const void *start, size_t size, size_t step)
{
    uintptr_t at = (uintptr_t)pointer, first = (uintptr_t)start;
    return at >= first && at < first + size && (at - first) % step == 0;
}

/* A device, whole or MIG, as its files are now; obeys `hang`, `status` and `fail`. */
static nvmlReturn_t look(nvmlDevice_t device, const char *function, struct view *out)
{
    char path[PATH_BYTES], suffix[32];
    if (!within(device, library.gpu, sizeof library.gpu, sizeof *device) &&
        !within(device, library.mig, sizeof library.mig, sizeof *device))
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(suffix, sizeof suffix, "/%u", device->number);
    TRY(in_node(suffix, out->directory, sizeof out->directory - sizeof "/state"));
    if (device->number >= MAX_GPUS || !library.present[device->number])
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "%.*s/state", (int)(sizeof path - sizeof "/state"), out->directory);
    out->device = device;
    TRY(text_enter(path, function, &out->state));
    if (device->mig != WHOLE_GPU && !text_mig(&out->state, (unsigned int)device->mig, &out->mig))
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

/* As look, for what NVML does not know of a MIG instance. */
static nvmlReturn_t look_gpu(nvmlDevice_t device, const char *function, struct view *out)
{
    TRY(look(device, function, out));
    return device->mig == WHOLE_GPU ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    struct text state;
    TRY(look_node(__func__, &state));
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = library.count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    struct text state;
    struct view view;
    TRY(look_node(__func__, &state));
    if (index >= library.count || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(look(&library.gpu[library.order[index]], __func__, &view));
    *device = &library.gpu[library.order[index]];
    return NVML_SUCCESS;
}

/* The number of a GPU is its place in `order`; a lost GPU is passed over, as it can't say who it is. */
EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct text state;
    struct view view;
    struct span value;
    TRY(look_node(__func__, &state));
    if (uuid == NULL || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < library.count; i++) {
        struct nvmlDevice_st *gpu = &library.gpu[library.order[i]];
        if (look(gpu, __func__, &view) != NVML_SUCCESS)
            continue;
        if (text_find(&view.state, "uuid", &value) && span_equals(value, uuid)) {
            *device = gpu;
            return NVML_SUCCESS;
        }
        for (unsigned int slot = 0; slot < MAX_MIGS; slot++)
            if (text_mig(&view.state, slot, &view.mig) && span_equals(view.mig.uuid, uuid)) {
                *device = &library.mig[gpu->number][slot];
                return NVML_SUCCESS;
            }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    struct text state;
    struct view view;
    struct span value;
    struct pci wanted, found;
    TRY(look_node(__func__, &state));
    if (bus_id == NULL || device == NULL || !span_pci((struct span){bus_id, strlen(bus_id)}, &wanted))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < library.count; i++) {
        struct nvmlDevice_st *gpu = &library.gpu[library.order[i]];
        if (look(gpu, __func__, &view) == NVML_SUCCESS && text_find(&view.state, "pci", &value) &&
            span_pci(value, &found) && found.domain == wanted.domain && found.bus == wanted.bus &&
            found.device == wanted.device) {
            *device = gpu;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- who a device is ---- */

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    struct view view;
    TRY(look_gpu(device, __func__, &view));
    for (unsigned int i = 0; index != NULL && i < library.count; i++)
        if (library.order[i] == device->number) {
            *index = i;
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    struct view view;
    TRY(look(device, __func__, &view));
    TRY(text_string(&view.state, "name", name, length));
    if (device->mig == WHOLE_GPU)
        return NVML_SUCCESS;
    size_t used = strlen(name);
    int added = snprintf(name + used, length - used, " MIG %.*s", (int)view.mig.profile.length, view.mig.profile.at);
    return (size_t)added < length - used ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    struct view view;
    TRY(look(device, __func__, &view));
    return device->mig == WHOLE_GPU ? text_string(&view.state, "uuid", uuid, length)
                                    : span_string(view.mig.uuid, uuid, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
    struct view view;
    TRY(look_gpu(device, __func__, &view));
    return text_string(&view.state, "serial", serial, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    struct view view;
    struct pci pci;
    char text[32];
    TRY(look_gpu(device, __func__, &view));
    TRY(text_string(&view.state, "pci", text, sizeof text));
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!span_pci((struct span){text, strlen(text)}, &pci))
        return NVML_ERROR_UNKNOWN;
    uint64_t id;
    TRY(text_number_or(&view.state, "pci_device_id", 0, &id));
    *info = (nvmlPciInfo_t){.domain = pci.domain, .bus = pci.bus, .device = pci.device, .pciDeviceId = (unsigned int)id};
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", pci.domain, pci.bus & 0xFF, pci.device & 0xFF);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", pci.domain & 0xFFFF, pci.bus & 0xFF,
             pci.device & 0xFF);
    return NVML_SUCCESS;
}

/* Entry points that are one number of the state file. */
#define NUMBER(function, type, key)                                                                                    \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, type *out)                                                       \
    {                                                                                                                  \
        struct view view;                                                                                              \
        uint64_t value;                                                                                                \
        TRY(look_gpu(device, __func__, &view));                                                                        \
        TRY(text_number(&view.state, key, &value));                                                                    \
        if (out == NULL)                                                                                               \
            return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
        *out = (type)value;                                                                                            \
        return NVML_SUCCESS;                                                                                           \
    }

NUMBER(nvmlDeviceGetMinorNumber, unsigned int, "minor")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned int, "power_limit_mw")
NUMBER(nvmlDeviceGetPersistenceMode, unsigned int, "persistence_mode")
NUMBER(nvmlDeviceGetPerformanceState, unsigned int, "performance_state")

/* ---- what a device does ---- */

/* The live loads of a device: of a MIG instance only its own. */
static void view_loads(const struct view *view, struct loads *out)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.*s/load", (int)(sizeof path - sizeof "/load"), view->directory);
    loads_read(path, out);
    if (view->device->mig == WHOLE_GPU)
        return;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < out->count; i++)
        if (out->item[i].gpu_instance == view->mig.gpu_instance &&
            (out->item[i].compute_instance == NVML_NO_INSTANCE ||
             out->item[i].compute_instance == view->mig.compute_instance))
            out->item[kept++] = out->item[i];
    out->count = kept;
}

static bool mig_enabled(const struct view *view)
{
    uint64_t mode;
    return text_number(&view->state, "mig_mode", &mode) == NVML_SUCCESS && mode != 0;
}

/* Per cent of the GPU that its processes use, whether or not NVML would tell. */
static uint64_t activity(const struct view *view, const struct loads *loads)
{
    uint64_t sum = 0;
    if (text_number(&view->state, "utilization", &sum) != NVML_SUCCESS) {
        sum = 0;
        for (unsigned int i = 0; i < loads->count; i++)
            sum += loads->item[i].utilization;
    }
    return sum < 100 ? sum : 100;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    struct view view;
    struct loads loads;
    uint64_t gpu, memory;
    TRY(look_gpu(device, __func__, &view));
    if (mig_enabled(&view)) /* as the real driver: rates of a partitioned GPU are not told */
        return NVML_ERROR_NOT_SUPPORTED;
    view_loads(&view, &loads);
    TRY(text_number_or(&view.state, "utilization", activity(&view, &loads), &gpu));
    TRY(text_number_or(&view.state, "memory_utilization", gpu / 2, &memory));
    if (utilization == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *utilization = (nvmlUtilization_t){(unsigned int)gpu, (unsigned int)memory};
    return NVML_SUCCESS;
}

static nvmlReturn_t memory_info(nvmlDevice_t device, const char *function, nvmlMemory_v2_t *out)
{
    struct view view;
    struct loads loads;
    uint64_t total, reserved = 0, used = 0;
    TRY(look(device, function, &view));
    view_loads(&view, &loads);
    if (device->mig == WHOLE_GPU) {
        TRY(text_number(&view.state, "memory_total_mib", &total));
        TRY(text_number_or(&view.state, "memory_reserved_mib", 0, &reserved));
        TRY(text_number_or(&view.state, "memory_base_mib", 0, &used));
    } else {
        total = view.mig.memory_mib;
    }
    if (total > UINT32_MAX) /* MiB: a wrong file, and the products below must not overflow */
        return NVML_ERROR_UNKNOWN;
    for (unsigned int i = 0; i < loads.count; i++)
        used += loads.item[i].memory_mib;
    if (device->mig == WHOLE_GPU)
        TRY(text_number_or(&view.state, "memory_used_mib", used, &used));
    reserved = reserved < total ? reserved : total;
    used = used < total - reserved ? used : total - reserved;
    out->total = total * MIB;
    out->reserved = reserved * MIB;
    out->used = used * MIB;
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t info;
    TRY(memory_info(device, __func__, &info));
    if (memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *memory = (nvmlMemory_t){.total = info.total, .free = info.free, .used = info.used + info.reserved};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    if (memory == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return memory->version == NVML_MEMORY_V2 ? memory_info(device, __func__, memory)
                                             : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

/* Idle power, plus what loads state, plus nine tenths of the rest of the limit for the utilisation that states none. */
EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    struct view view;
    struct loads loads;
    uint64_t idle, limit, power, unstated;
    TRY(look_gpu(device, __func__, &view));
    TRY(text_number_or(&view.state, "power_idle_mw", 0, &idle));
    TRY(text_number_or(&view.state, "power_limit_mw", idle, &limit));
    view_loads(&view, &loads);
    unstated = activity(&view, &loads);
    limit = limit < UINT32_MAX ? limit : UINT32_MAX;
    power = idle < limit ? idle : limit;
    uint64_t share = (limit - power) * 9 / 10;
    for (unsigned int i = 0; i < loads.count; i++)
        if (loads.item[i].power_mw != 0) {
            power += loads.item[i].power_mw;
            unstated -= loads.item[i].utilization < unstated ? loads.item[i].utilization : unstated;
        }
    power += share * unstated / 100;
    TRY(text_number_or(&view.state, "power_mw", power < limit ? power : limit, &power));
    if (milliwatts == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *milliwatts = (unsigned int)power;
    return NVML_SUCCESS;
}

static nvmlReturn_t temperature(nvmlDevice_t device, const char *function, unsigned int sensor, uint64_t *degrees)
{
    struct view view;
    struct loads loads;
    TRY(look_gpu(device, function, &view));
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    view_loads(&view, &loads);
    return text_number_or(&view.state, "temperature_c", 30 + 40 * activity(&view, &loads) / 100, degrees);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *degrees)
{
    uint64_t value;
    TRY(temperature(device, __func__, sensor, &value));
    if (degrees == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *degrees = (unsigned int)value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *out)
{
    uint64_t value;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != NVML_TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(temperature(device, __func__, out->sensorType, &value));
    out->temperature = (int)value;
    return NVML_SUCCESS;
}

static const struct {
    const char *now, *most;
} CLOCKS[NVML_CLOCK_COUNT] = {
    [NVML_CLOCK_GRAPHICS] = {"clock_graphics_mhz", "max_clock_graphics_mhz"},
    [NVML_CLOCK_SM] = {"clock_sm_mhz", "max_clock_sm_mhz"},
    [NVML_CLOCK_MEM] = {"clock_mem_mhz", "max_clock_mem_mhz"},
    [NVML_CLOCK_VIDEO] = {"clock_video_mhz", "max_clock_video_mhz"},
};

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    struct view view;
    uint64_t value;
    TRY(look_gpu(device, __func__, &view));
    if (type >= NVML_CLOCK_COUNT || mhz == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(text_number(&view.state, CLOCKS[type].most, &value));
    *mhz = (unsigned int)value;
    return NVML_SUCCESS;
}

/* Memory runs at full clock; the others do when the GPU is busy. */
EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    struct view view;
    struct loads loads;
    uint64_t value;
    TRY(look_gpu(device, __func__, &view));
    if (type >= NVML_CLOCK_COUNT || mhz == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    view_loads(&view, &loads);
    bool full = type == NVML_CLOCK_MEM || activity(&view, &loads) > 0;
    nvmlReturn_t derived = text_number(&view.state, full ? CLOCKS[type].most : "clock_idle_mhz", &value);
    struct span given;
    if (text_find(&view.state, CLOCKS[type].now, &given))
        derived = text_number(&view.state, CLOCKS[type].now, &value);
    if (derived != NVML_SUCCESS)
        return derived;
    *mhz = (unsigned int)value;
    return NVML_SUCCESS;
}

static nvmlReturn_t clock_reasons(nvmlDevice_t device, const char *function, unsigned long long *reasons)
{
    struct view view;
    struct loads loads;
    uint64_t value;
    TRY(look_gpu(device, function, &view));
    view_loads(&view, &loads);
    uint64_t derived = activity(&view, &loads) > 0 ? 0 : NVML_THROTTLE_GPU_IDLE;
    TRY(text_number_or(&view.state, "throttle_reasons", derived, &value));
    if (reasons == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *reasons = value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return clock_reasons(device, __func__, reasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    return clock_reasons(device, __func__, reasons);
}

static nvmlReturn_t running(nvmlDevice_t device, const char *function, unsigned int *count, nvmlProcessInfo_v2_t *infos)
{
    struct view view;
    struct loads loads;
    TRY(look(device, function, &view));
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    view_loads(&view, &loads);
    unsigned int room = infos == NULL ? 0 : *count;
    *count = loads.count;
    if (loads.count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < loads.count; i++)
        infos[i] = (nvmlProcessInfo_v2_t){loads.item[i].pid, loads.item[i].memory_mib * MIB, loads.item[i].gpu_instance,
                                          loads.item[i].compute_instance};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_v2_t *infos)
{
    return running(device, __func__, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                            nvmlProcessInfo_v2_t *infos)
{
    return running(device, __func__, count, infos);
}

/* ---- health ---- */

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    struct view view;
    uint64_t now, next;
    TRY(look_gpu(device, __func__, &view));
    TRY(text_number(&view.state, "ecc_mode", &now));
    TRY(text_number_or(&view.state, "ecc_mode_pending", now, &next));
    if (current == NULL || pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = (unsigned int)now;
    *pending = (unsigned int)next;
    return NVML_SUCCESS;
}

static nvmlReturn_t ecc_errors(nvmlDevice_t device, const char *function, unsigned int error, unsigned int counter,
                               unsigned long long *count)
{
    static const char *const KEYS[2][2] = {{"ecc_corrected_volatile", "ecc_corrected_aggregate"},
                                           {"ecc_uncorrected_volatile", "ecc_uncorrected_aggregate"}};
    struct view view;
    uint64_t mode, value;
    TRY(look_gpu(device, function, &view));
    if (error > 1 || counter > 1 || count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(text_number(&view.state, "ecc_mode", &mode));
    if (mode == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    TRY(text_number(&view.state, KEYS[error][counter], &value));
    *count = value;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                unsigned long long *count)
{
    return ecc_errors(device, __func__, error, counter, count);
}

/* All emulated errors are in device memory (location 2). */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int error, unsigned int counter,
                                                    unsigned int location, unsigned long long *count)
{
    return location == 2 ? ecc_errors(device, __func__, error, counter, count) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                              unsigned int *pending, unsigned int *failed)
{
    static const char *const KEYS[] = {"remapped_corrected", "remapped_uncorrected", "remap_pending", "remap_failed"};
    unsigned int *const outs[] = {corrected, uncorrected, pending, failed};
    struct view view;
    uint64_t value;
    TRY(look_gpu(device, __func__, &view));
    for (size_t i = 0; i < 4; i++) {
        TRY(text_number(&view.state, KEYS[i], &value));
        if (outs[i] == NULL)
            return NVML_ERROR_INVALID_ARGUMENT;
        *outs[i] = (unsigned int)value;
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
    struct view view;
    uint64_t links, value;
    char key[32];
    TRY(look_gpu(device, __func__, &view));
    TRY(text_number(&view.state, "nvlinks", &links));
    if (link >= links || active == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(key, sizeof key, "nvlink_%u", link);
    TRY(text_number_or(&view.state, key, 1, &value));
    *active = (unsigned int)value;
    return NVML_SUCCESS;
}

/* ---- MIG ---- */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    struct view view;
    uint64_t now, next;
    TRY(look_gpu(device, __func__, &view));
    TRY(text_number(&view.state, "mig_mode", &now));
    TRY(text_number_or(&view.state, "mig_mode_pending", now, &next));
    if (current == NULL || pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = (unsigned int)now;
    *pending = (unsigned int)next;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    struct view view;
    uint64_t mode;
    TRY(look_gpu(device, __func__, &view));
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = text_number(&view.state, "mig_mode", &mode) == NVML_SUCCESS ? MAX_MIGS - 1 : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
    struct view view;
    TRY(look_gpu(device, __func__, &view));
    if (index >= MAX_MIGS || out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!mig_enabled(&view))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!text_mig(&view.state, index, &view.mig))
        return NVML_ERROR_NOT_FOUND;
    *out = &library.mig[device->number][index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    struct view view;
    TRY(look(device, __func__, &view));
    if (is_mig == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *is_mig = device->mig != WHOLE_GPU;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
    struct view view;
    TRY(look(device, __func__, &view));
    if (device->mig == WHOLE_GPU || parent == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *parent = &library.gpu[device->number];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct view view;
    TRY(look(device, __func__, &view));
    if (device->mig == WHOLE_GPU || id == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = view.mig.gpu_instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct view view;
    TRY(look(device, __func__, &view));
    if (device->mig == WHOLE_GPU || id == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = view.mig.compute_instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    struct view view;
    TRY(look(device, __func__, &view));
    if (device->mig == WHOLE_GPU)
        return NVML_ERROR_NOT_SUPPORTED;
    if (attributes == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *attributes = (nvmlDeviceAttributes_t){.gpuInstanceSliceCount = view.mig.slices,
                                           .computeInstanceSliceCount = view.mig.slices,
                                           .memorySizeMB = view.mig.memory_mib};
    return NVML_SUCCESS;
}

/* ---- events ---- */

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
