/* Reads the files that describe an emulated GPU. See files.h for the contract, docs/emulated-gpus.md for the format. */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const struct {
    nvmlReturn_t code;
    const char *name, *text;
} ERRORS[] = {
    {NVML_SUCCESS, "SUCCESS", "Success"},
    {NVML_ERROR_UNINITIALIZED, "UNINITIALIZED", "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "INVALID_ARGUMENT", "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "NOT_SUPPORTED", "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "NO_PERMISSION", "Insufficient Permissions"},
    {NVML_ERROR_NOT_FOUND, "NOT_FOUND", "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE", "Insufficient Size"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED", "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "TIMEOUT", "Timeout"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "LIBRARY_NOT_FOUND", "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "FUNCTION_NOT_FOUND", "Function Not Found"},
    {NVML_ERROR_GPU_IS_LOST, "GPU_IS_LOST", "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "RESET_REQUIRED", "GPU requires restart"},
    {NVML_ERROR_OPERATING_SYSTEM, "OPERATING_SYSTEM", "The operating system has blocked the request."},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "LIB_RM_VERSION_MISMATCH", "RM has detected an NVML/RM version mismatch."},
    {NVML_ERROR_IN_USE, "IN_USE", "In use by another client"},
    {NVML_ERROR_NO_DATA, "NO_DATA", "No data"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "INSUFFICIENT_RESOURCES", "Insufficient Resources"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "ARGUMENT_VERSION_MISMATCH", "Version mismatch of the argument"},
    {NVML_ERROR_NOT_READY, "NOT_READY", "System Not Ready"},
    {NVML_ERROR_GPU_NOT_FOUND, "GPU_NOT_FOUND", "GPU not found"},
    {NVML_ERROR_UNKNOWN, "UNKNOWN", "Unknown Error"},
};
enum { ERROR_COUNT = sizeof ERRORS / sizeof ERRORS[0] };

const char *error_text(nvmlReturn_t code)
{
    for (size_t i = 0; i < ERROR_COUNT; i++)
        if (ERRORS[i].code == code)
            return ERRORS[i].text;
    return "Unknown Error";
}

void nap(unsigned int milliseconds)
{
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000L};
    while (nanosleep(&left, &left) == -1 && errno == EINTR)
        ;
}

/* ---- spans ---- */

bool span_equals(struct span span, const char *word)
{
    return strlen(word) == span.length && memcmp(span.at, word, span.length) == 0;
}

nvmlReturn_t span_string(struct span span, char *out, size_t size)
{
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (span.length >= size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, span.at, span.length);
    out[span.length] = '\0';
    return NVML_SUCCESS;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts the next word off `rest`; an empty span when there is none left. */
static struct span next_word(struct span *rest)
{
    while (rest->length > 0 && is_blank(*rest->at))
        rest->at++, rest->length--;
    struct span word = {rest->at, 0};
    while (rest->length > 0 && !is_blank(*rest->at))
        rest->at++, rest->length--, word.length++;
    return word;
}

/* By hand and not by strtoull: newer C libraries bind that to __isoc23_strtoull, and then a library built on this
 * machine would not load in the chroot of an older release. */
static bool span_number(struct span span, unsigned int base, uint64_t limit, uint64_t *out)
{
    uint64_t value = 0;
    if (span.length == 0 || span.length > 20)
        return false;
    for (size_t i = 0; i < span.length; i++) {
        char c = span.at[i];
        unsigned int digit = c >= '0' && c <= '9'   ? (unsigned int)(c - '0')
                             : c >= 'a' && c <= 'f' ? (unsigned int)(c - 'a') + 10
                             : c >= 'A' && c <= 'F' ? (unsigned int)(c - 'A') + 10
                                                    : 99;
        if (digit >= base || value > (limit - digit) / base)
            return false;
        value = value * base + digit;
    }
    *out = value;
    return true;
}

static bool next_uint(struct span *rest, unsigned int *out)
{
    uint64_t value;
    if (!span_number(next_word(rest), 10, UINT32_MAX, &value))
        return false;
    *out = (unsigned int)value;
    return true;
}

static nvmlReturn_t span_error(struct span span, nvmlReturn_t otherwise)
{
    for (size_t i = 1; i < ERROR_COUNT; i++)
        if (span_equals(span, ERRORS[i].name))
            return ERRORS[i].code;
    return otherwise;
}

/* "00000000:07:00.0" or "0000:07:00.0" */
bool span_pci(struct span span, struct pci *out)
{
    const char separators[] = "::.";
    uint64_t part[4];
    for (size_t i = 0; i < 4; i++) {
        struct span digits = {span.at, 0};
        while (span.length > 0 && (i == 3 || *span.at != separators[i]))
            span.at++, span.length--, digits.length++;
        if (!span_number(digits, 16, i == 0 ? UINT32_MAX : 0xFF, &part[i]))
            return false;
        if (i < 3) {
            if (span.length == 0)
                return false;
            span.at++, span.length--;
        }
    }
    *out = (struct pci){(unsigned int)part[0], (unsigned int)part[1], (unsigned int)part[2]};
    return true;
}

/* ---- texts ---- */

/* O_NOFOLLOW and O_NONBLOCK: users write some of these files, and a link or a FIFO must neither leak nor block. */
static nvmlReturn_t read_at(int directory, const char *name, char *data, size_t size, size_t *length)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd == -1)
        return errno == ENOENT ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_UNKNOWN;
    nvmlReturn_t result = NVML_ERROR_UNKNOWN;
    struct stat status;
    *length = 0;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
        ssize_t got = 0;
        while (*length < size && ((got = read(fd, data + *length, size - *length)) > 0 || (got == -1 && errno == EINTR)))
            *length += got > 0 ? (size_t)got : 0;
        if (got == 0 && *length < size) /* a file that fills the buffer may go on: too big */
            result = NVML_SUCCESS;
    }
    close(fd);
    return result;
}

nvmlReturn_t text_read(const char *path, struct text *out)
{
    return read_at(AT_FDCWD, path, out->data, sizeof out->data, &out->length);
}

/* Cuts the next line off `rest`; false at the end. */
static bool next_line(struct span *rest, struct span *line)
{
    if (rest->length == 0)
        return false;
    const char *end = memchr(rest->at, '\n', rest->length);
    line->at = rest->at;
    line->length = end != NULL ? (size_t)(end - rest->at) : rest->length;
    size_t used = line->length + (end != NULL ? 1 : 0);
    rest->at += used;
    rest->length -= used;
    return true;
}

static struct span trimmed(struct span span)
{
    while (span.length > 0 && is_blank(*span.at))
        span.at++, span.length--;
    while (span.length > 0 && is_blank(span.at[span.length - 1]))
        span.length--;
    return span;
}

static bool find(struct span rest, const char *key, struct span *value)
{
    struct span line;
    while (next_line(&rest, &line))
        if (span_equals(next_word(&line), key)) {
            *value = trimmed(line);
            return true;
        }
    return false;
}

bool text_find(const struct text *text, const char *key, struct span *value)
{
    return find((struct span){text->data, text->length}, key, value);
}

nvmlReturn_t text_number_or(const struct text *text, const char *key, uint64_t fallback, uint64_t *out)
{
    struct span value;
    *out = fallback;
    if (!text_find(text, key, &value) || span_number(value, 10, UINT64_MAX, out))
        return NVML_SUCCESS;
    return span_error(value, NVML_ERROR_UNKNOWN);
}

nvmlReturn_t text_number(const struct text *text, const char *key, uint64_t *out)
{
    struct span value;
    return text_find(text, key, &value) ? text_number_or(text, key, 0, out) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t text_string(const struct text *text, const char *key, char *out, size_t size)
{
    struct span value;
    if (!text_find(text, key, &value))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t error = span_error(value, NVML_SUCCESS);
    return error != NVML_SUCCESS ? error : span_string(value, out, size);
}

/* The rest of the line `VERB FUNCTION REST`. */
static bool told(const struct text *text, const char *verb, const char *function, struct span *argument)
{
    struct span rest = {text->data, text->length}, line;
    while (next_line(&rest, &line))
        if (span_equals(next_word(&line), verb) && span_equals(next_word(&line), function)) {
            *argument = trimmed(line);
            return true;
        }
    return false;
}

nvmlReturn_t text_enter(const char *path, const char *function, struct text *out)
{
    struct span argument;
    for (;;) {
        nvmlReturn_t result = text_read(path, out);
        if (result != NVML_SUCCESS)
            return result;
        if (!told(out, "hang", function, &argument))
            break;
        nap(HANG_POLL_MS);
    }
    if (text_find(out, "status", &argument) && !span_equals(argument, "OK"))
        return span_error(argument, NVML_ERROR_UNKNOWN);
    if (told(out, "fail", function, &argument))
        return span_error(argument, NVML_ERROR_UNKNOWN);
    return NVML_SUCCESS;
}

bool text_mig(const struct text *text, unsigned int slot, struct mig *out)
{
    struct span rest = {text->data, text->length}, line;
    unsigned int number;
    uint64_t memory;
    while (next_line(&rest, &line)) {
        if (!span_equals(next_word(&line), "mig") || !next_uint(&line, &number) || number != slot)
            continue;
        if (!next_uint(&line, &out->gpu_instance) || !next_uint(&line, &out->compute_instance) ||
            !next_uint(&line, &out->slices) || !span_number(next_word(&line), 10, UINT32_MAX, &memory))
            continue;
        out->memory_mib = memory;
        out->uuid = next_word(&line);
        out->profile = next_word(&line);
        if (out->profile.length > 0)
            return true;
    }
    return false;
}

/* ---- loads ---- */

/* Whether the process still runs, and is the one that wrote the file: a zombie and a reused id count as dead.
 * `start` is field 22 of /proc/PID/stat, 0 if the file does not say. Without /proc, kill(2) decides alone. */
static bool alive(unsigned int pid, uint64_t start)
{
    if (kill((pid_t)pid, 0) == -1 && errno != EPERM)
        return false;
    char path[32], data[1024];
    size_t length;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (read_at(AT_FDCWD, path, data, sizeof data, &length) != NVML_SUCCESS)
        return true;
    size_t end = length; /* the name, in brackets, may itself hold blanks and brackets: go on after the last one */
    while (end > 0 && data[end - 1] != ')')
        end--;
    struct span rest = {data + end, length - end};
    struct span state = next_word(&rest), word = state;
    if (span_equals(state, "Z") || span_equals(state, "X"))
        return false;
    for (unsigned int field = 3; field < 22; field++)
        word = next_word(&rest);
    uint64_t started;
    return start == 0 || !span_number(word, 10, UINT64_MAX, &started) || started == start;
}

static uint64_t load_value(struct span text, const char *key, uint64_t fallback, uint64_t limit)
{
    struct span value;
    uint64_t number;
    if (!find(text, key, &value) || !span_number(value, 10, UINT64_MAX, &number))
        return fallback;
    return number < limit ? number : limit;
}

static bool load_read(int directory, const char *name, struct load *out)
{
    char data[LOAD_BYTES];
    uint64_t pid;
    struct span text = {data, 0};
    if (!span_number((struct span){name, strlen(name)}, 10, INT32_MAX, &pid) || pid == 0 ||
        read_at(directory, name, data, sizeof data, &text.length) != NVML_SUCCESS ||
        !alive((unsigned int)pid, load_value(text, "start", 0, UINT64_MAX)))
        return false;
    out->pid = (unsigned int)pid;
    out->utilization = load_value(text, "utilization", 0, 100);
    out->memory_mib = load_value(text, "memory_mib", 0, UINT32_MAX);
    out->power_mw = load_value(text, "power_mw", 0, UINT32_MAX);
    out->gpu_instance = (unsigned int)load_value(text, "gpu_instance", NVML_NO_INSTANCE, NVML_NO_INSTANCE);
    out->compute_instance = (unsigned int)load_value(text, "compute_instance", NVML_NO_INSTANCE, NVML_NO_INSTANCE);
    return true;
}

void loads_read(const char *directory, struct loads *out)
{
    out->count = 0;
    int fd = open(directory, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_DIRECTORY);
    if (fd == -1)
        return;
    DIR *listing = fdopendir(fd);
    if (listing == NULL) {
        close(fd);
        return;
    }
    struct dirent *entry;
    for (unsigned int seen = 0; seen < MAX_ENTRIES && out->count < MAX_LOADS; seen++) {
        if ((entry = readdir(listing)) == NULL)
            break;
        if (load_read(dirfd(listing), entry->d_name, &out->item[out->count]))
            out->count++;
    }
    closedir(listing);
}
