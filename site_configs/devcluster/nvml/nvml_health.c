/* NVML's questions about the health of a GPU: ECC, remapped rows, NVLink. */
#include "library.h"

#include <stdio.h>

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

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned int *pending)
{
    struct view view;
    uint64_t value;
    TRY(look_gpu(device, __func__, &view));
    TRY(text_number(&view.state, "retirement_pending", &value));
    if (pending == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *pending = (unsigned int)value;
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
