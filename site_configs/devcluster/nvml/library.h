/* What the entry points share: the state of the library, handles, and the look at a device's files. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <pthread.h>
#include <sys/types.h>

#include "files.h"

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

struct library {
    pthread_mutex_t lock;
    unsigned int users;
    unsigned int count;
    struct nvmlDevice_st gpu[MAX_GPUS];
    struct nvmlDevice_st mig[MAX_GPUS][MAX_MIGS];
    bool present[MAX_GPUS];            /* by device number */
    unsigned int order[MAX_GPUS];      /* NVML index -> device number */
    struct nvmlEventSet_st sets[MAX_EVENT_SETS];
    char node[PATH_BYTES - 64];
};
extern struct library library; /* users and sets under the lock; the rest changes in nvmlInit alone */

/* The path NODE + suffix, if the library is initialised. */
nvmlReturn_t in_node(const char *suffix, char *out, size_t size);

/* The state of the node; obeys its `hang`, `status` and `fail`. */
nvmlReturn_t look_node(const char *function, struct text *out);

/* A device, whole or MIG, as its files are now; obeys `hang`, `status` and `fail`. */
nvmlReturn_t look(nvmlDevice_t device, const char *function, struct view *out);

/* As look, for what NVML does not know of a MIG instance. */
nvmlReturn_t look_gpu(nvmlDevice_t device, const char *function, struct view *out);

bool mig_enabled(const struct view *view);

struct work { /* what a GPU does now */
    uint64_t utilization, power_mw;
    bool told; /* whether NVML would tell the utilisation */
    bool idle; /* no process is on it */
};

/* A GPU's work as its files are now, whatever they say of functions that hang or fail. */
void work_of(unsigned int number, struct work *out);

/* Whether a pointer is one of the objects of `step` bytes in an array of `size` bytes. */
bool within(const void *pointer, const void *start, size_t size, size_t step);

#endif
