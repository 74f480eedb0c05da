/* libnvidia-ml.so.1 for machines without a GPU: the NVML entry points that gsub uses, answered from files.
 *
 * $GSUB_EMU_GPUS names the root; $GSUB_EMU_NODE, else $SLURMD_NODENAME, the node. Both are read in nvmlInit.
 * What is not here is NVML_ERROR_FUNCTION_NOT_FOUND to nvidia-ml-py, exactly as with an old driver.
 *
 * Handles are addresses of static objects, so a stale or invented one is recognised and nothing is ever freed.
 */
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct library library = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

nvmlReturn_t in_node(const char *suffix, char *out, size_t size)
{
    pthread_mutex_lock(&library.lock);
    bool ready = library.users > 0;
    if (ready)
        snprintf(out, size, "%s%s", library.node, suffix);
    pthread_mutex_unlock(&library.lock);
    return ready ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t look_node(const char *function, struct text *out)
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

bool within(const void *pointer, const void *start, size_t size, size_t step)
{
    uintptr_t at = (uintptr_t)pointer, first = (uintptr_t)start;
    return at >= first && at < first + size && (at - first) % step == 0;
}

nvmlReturn_t look(nvmlDevice_t device, const char *function, struct view *out)
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

nvmlReturn_t look_gpu(nvmlDevice_t device, const char *function, struct view *out)
{
    TRY(look(device, function, out));
    return device->mig == WHOLE_GPU ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

bool mig_enabled(const struct view *view)
{
    uint64_t mode;
    return text_number(&view->state, "mig_mode", &mode) == NVML_SUCCESS && mode != 0;
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

/* Passes over a lost GPU, as that cannot say who it is. */
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
