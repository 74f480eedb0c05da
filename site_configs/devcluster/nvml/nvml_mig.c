/* MIG: the mode of a GPU, its instances, and what an instance is part of. */
#include "library.h"

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
