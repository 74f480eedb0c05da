/* NVML's questions about one device: who it is, and what it does. */
#include "library.h"

#include <stdio.h>
#include <string.h>

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
static nvmlReturn_t power_of(const struct view *view, const struct loads *loads, uint64_t *milliwatts)
{
    uint64_t idle, limit, power, unstated = activity(view, loads);
    TRY(text_number_or(&view->state, "power_idle_mw", 0, &idle));
    TRY(text_number_or(&view->state, "power_limit_mw", idle, &limit));
    limit = limit < UINT32_MAX ? limit : UINT32_MAX;
    power = idle < limit ? idle : limit;
    uint64_t share = (limit - power) * 9 / 10;
    for (unsigned int i = 0; i < loads->count; i++)
        if (loads->item[i].power_mw != 0) {
            power += loads->item[i].power_mw;
            unstated -= loads->item[i].utilization < unstated ? loads->item[i].utilization : unstated;
        }
    power += share * unstated / 100;
    return text_number_or(&view->state, "power_mw", power < limit ? power : limit, milliwatts);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    struct view view;
    struct loads loads;
    uint64_t power;
    TRY(look_gpu(device, __func__, &view));
    view_loads(&view, &loads);
    TRY(power_of(&view, &loads, &power));
    if (milliwatts == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *milliwatts = (unsigned int)power;
    return NVML_SUCCESS;
}

void work_of(unsigned int number, struct work *out)
{
    static _Thread_local struct view view; /* a state file is 16 KiB: not on the stack of a thread */
    static _Thread_local struct loads loads;
    char suffix[32], path[PATH_BYTES];
    uint64_t value;
    *out = (struct work){.idle = true};
    snprintf(suffix, sizeof suffix, "/%u", number);
    if (in_node(suffix, view.directory, sizeof view.directory - sizeof "/state") != NVML_SUCCESS)
        return;
    snprintf(path, sizeof path, "%.*s/state", (int)(sizeof path - sizeof "/state"), view.directory);
    view.device = &library.gpu[number];
    if (text_read(path, &view.state) != NVML_SUCCESS)
        return;
    view_loads(&view, &loads);
    out->idle = loads.count == 0;
    out->told = !mig_enabled(&view) &&
                text_number_or(&view.state, "utilization", activity(&view, &loads), &value) == NVML_SUCCESS;
    out->utilization = out->told ? value : 0;
    if (power_of(&view, &loads, &value) == NVML_SUCCESS && value <= UINT32_MAX)
        out->power_mw = value;
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
