/* What the entry points (nvml_*.c) need from the files of an emulated GPU (files.c).
 *
 * Every file is read anew at each call, whole, bounded, never through a symbolic link; nothing is cached but the
 * list of GPUs, which real NVML also fixes in nvmlInit. No function here keeps a lock while it waits.
 */
#ifndef FILES_H
#define FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml_types.h"

enum {
    MAX_GPUS = 64,
    MAX_MIGS = 8,       /* a GPU has at most 7 instances */
    MAX_LOADS = 256,    /* processes on one GPU that count */
    MAX_ENTRIES = 4096, /* names looked at in a load directory, which any user can fill */
    STATE_BYTES = 16384,
    LOAD_BYTES = 512,
    PATH_BYTES = 1024,
    HANG_POLL_MS = 20
};

struct span { /* a piece of a text: not terminated */
    const char *at;
    size_t length;
};

struct text {
    size_t length;
    char data[STATE_BYTES];
};

struct load { /* what one live process does to one GPU */
    unsigned int pid;
    uint64_t utilization; /* per cent, at most 100 */
    uint64_t memory_mib;
    uint64_t power_mw; /* 0: derived from the utilisation */
    unsigned int gpu_instance, compute_instance; /* NVML_NO_INSTANCE: the whole GPU */
};

struct loads {
    unsigned int count;
    struct load item[MAX_LOADS];
};

struct mig { /* a line `mig SLOT GPU_INSTANCE COMPUTE_INSTANCE SLICES MEMORY_MIB UUID PROFILE` */
    unsigned int gpu_instance, compute_instance, slices;
    uint64_t memory_mib;
    struct span uuid, profile;
};

struct pci {
    unsigned int domain, bus, device;
};

/* Files -> text. A missing file is NVML_ERROR_GPU_IS_LOST, one that is too big or not a plain file NVML_ERROR_UNKNOWN. */
nvmlReturn_t text_read(const char *path, struct text *out);

/* Value of the first line `KEY VALUE`; false if there is none. */
bool text_find(const struct text *text, const char *key, struct span *value);

/* As text_find, for numbers: an error's name as value is returned as that error; no line gives NOT_SUPPORTED;
 * a malformed number gives UNKNOWN, because a wrong file must not look like a measurement. */
nvmlReturn_t text_number(const struct text *text, const char *key, uint64_t *out);

/* As text_number, with `fallback` where there is no line. */
nvmlReturn_t text_number_or(const struct text *text, const char *key, uint64_t fallback, uint64_t *out);

/* Copies a value as a C string; errors as text_number, INSUFFICIENT_SIZE if it does not fit. */
nvmlReturn_t text_string(const struct text *text, const char *key, char *out, size_t size);

/* Reads `path` and obeys its lines for `function`: blocks while there is `hang FUNCTION`, then returns the error of
 * `status ERROR` or of `fail FUNCTION ERROR`. */
nvmlReturn_t text_enter(const char *path, const char *function, struct text *out);

bool text_mig(const struct text *text, unsigned int slot, struct mig *out);

bool span_equals(struct span span, const char *word);
nvmlReturn_t span_string(struct span span, char *out, size_t size);
bool span_pci(struct span span, struct pci *out);

/* The live loads of a GPU, from the files `directory`/PID. Never fails: what cannot be trusted is left out. */
void loads_read(const char *directory, struct loads *out);

const char *error_text(nvmlReturn_t code);
void nap(unsigned int milliseconds);

#endif
