/* The part of NVML's binary interface that the emulator offers: types and constants.
 *
 * Written from the layouts that nvidia-ml-py declares with ctypes (c_nvmlMemory_v2_t, nvmlPciInfo_t, ...): that
 * package is the caller, so its view of the structures is the one that counts.
 */
#ifndef NVML_TYPES_H
#define NVML_TYPES_H

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_NO_DATA = 21,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_NOT_READY = 27,
    NVML_ERROR_GPU_NOT_FOUND = 28,
    NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned int gpu, memory; /* per cent */
} nvmlUtilization_t;

typedef struct {
    unsigned long long total, free, used; /* bytes; used includes what the driver reserves */
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used; /* bytes */
} nvmlMemory_v2_t;
#define NVML_MEMORY_V2 ((unsigned int)(sizeof(nvmlMemory_v2_t) | (2U << 24)))

typedef struct {
    unsigned int version;
    unsigned int sensorType;
    int temperature; /* degrees Celsius */
} nvmlTemperature_v1_t;
#define NVML_TEMPERATURE_V1 ((unsigned int)(sizeof(nvmlTemperature_v1_t) | (1U << 24)))

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory; /* bytes */
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t; /* v3 has the same layout */

typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount;
    unsigned int sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    unsigned long long timeStamp; /* microseconds since the epoch */
    union {
        double dVal;
        unsigned int uiVal;
        unsigned long long ullVal;
    } sampleValue;
} nvmlSample_t;

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO, NVML_CLOCK_COUNT };

#define NVML_EVENT_XID 0x8ULL
#define NVML_THROTTLE_GPU_IDLE 0x1U
#define NVML_GPU_UTILIZATION_SAMPLES 1U
#define NVML_VALUE_TYPE_UNSIGNED_INT 1U
#define NVML_NO_INSTANCE 0xFFFFFFFFU

_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvidia-ml-py says 0x02000028");
_Static_assert(sizeof(nvmlTemperature_v1_t) == 12, "nvidia-ml-py says 0x100000C");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "busIdLegacy, five numbers, busId");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24, "pid, memory, instance ids");
_Static_assert(sizeof(nvmlSample_t) == 16, "timestamp, value");

#endif
