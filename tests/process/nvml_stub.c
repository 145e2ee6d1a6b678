/* A libnvidia-ml.so.1 for tests: what it answers is read anew from the file $NVML_SCENE at each call.
 *
 *   init CODE                                  nvmlInit's answer
 *   count N                                    number of GPUs
 *   generation G                               another G than at nvmlInit: the driver was reloaded meanwhile
 *   hang 1                                     every memory query blocks until this is 0 again
 *   gpu I UUID NAME TOTAL USED STATUS MIG      STATUS: of the memory query; 15 (lost) also of the handle
 *   mig I J UUID NAME TOTAL USED STATUS        MIG instance J of GPU I
 *   process I J PID BYTES                      J is -1 for the whole GPU; BYTES -1: not available
 *   processes_status CODE                      answer to all questions for processes
 *
 * Each nvmlInit and nvmlShutdown appends a line to $NVML_SCENE.calls.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, NOT_FOUND = 6, SHORT = 7, LOST = 15 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
typedef struct { char uuid[96], name[96]; unsigned long long total, used; int status, mig; } device_t;

static long up_since = -1; /* the generation at nvmlInit */

static FILE *scene(void) { return fopen(getenv("NVML_SCENE"), "r"); }

static long number(const char *key, long otherwise) {
    char line[512], word[64];
    long value;
    FILE *file = scene();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %ld", word, &value) == 2 && !strcmp(word, key)) otherwise = value;
    if (file) fclose(file);
    return otherwise;
}

static int find(int index, int part, device_t *found) {
    char line[512];
    int i, j, hit = 0;
    FILE *file = scene();
    memset(found, 0, sizeof *found);
    while (file && !hit && fgets(line, sizeof line, file)) {
        if (part < 0)
            hit = sscanf(line, "gpu %d %95s %95s %llu %llu %d %d", &i, found->uuid, found->name, &found->total,
                         &found->used, &found->status, &found->mig) == 7 && i == index;
        else
            hit = sscanf(line, "mig %d %d %95s %95s %llu %llu %d", &i, &j, found->uuid, found->name,
                         &found->total, &found->used, &found->status) == 7 && i == index && j == part;
    }
    if (file) fclose(file);
    return hit;
}

static void note(const char *call) {
    char path[4096];
    snprintf(path, sizeof path, "%s.calls", getenv("NVML_SCENE"));
    FILE *file = fopen(path, "a");
    fprintf(file, "%s\n", call);
    fclose(file);
}

static int driver(void) { return up_since == number("generation", 0) ? OK : UNINITIALIZED; }
static void *handle(int index, int part) { return (void *)(long)((index + 1) | (part + 1) << 8); }
static int index_of(void *device) { return ((long)device & 255) - 1; }
static int part_of(void *device) { return ((long)device >> 8) - 1; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    note("init");
    int code = number("init", 0);
    if (code == OK) up_since = number("generation", 0);
    return code;
}

int nvmlShutdown(void) {
    note("shutdown");
    up_since = -1;
    return OK;
}

const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "some error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = number("count", 0);
    return driver();
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    device_t found;
    if (!find(index, -1, &found)) return NOT_FOUND;
    *device = handle(index, -1);
    return found.status == LOST ? LOST : driver();
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    device_t found;
    find(index_of(device), part_of(device), &found);
    snprintf(text, length, "%s", found.uuid);
    return strcmp(found.uuid, "-") ? driver() : NOT_SUPPORTED;
}

int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    device_t found;
    find(index_of(device), part_of(device), &found);
    snprintf(text, length, "%s", found.name);
    return strcmp(found.name, "-") ? driver() : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    device_t found;
    while (number("hang", 0)) usleep(20000);
    find(index_of(device), part_of(device), &found);
    memory->total = found.total;
    memory->used = found.used;
    memory->free = found.total - found.used;
    return found.status ? found.status : driver();
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process_t *out) {
    char line[512];
    int i, j;
    unsigned pid, room = *count, there = 0;
    long long bytes;
    int status = number("processes_status", 0);
    if (status) return status;
    FILE *file = scene();
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "process %d %d %u %lld", &i, &j, &pid, &bytes) == 4 && i == index_of(device) &&
            j == part_of(device)) {
            if (out && there < room) out[there] = (process_t){pid, (unsigned long long)bytes, ~0u, ~0u};
            there++;
        }
    if (file) fclose(file);
    *count = there;
    return there > room ? SHORT : driver();
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, process_t *out) {
    /* As a driver does for a program that also draws: it is in both lists. */
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, process_t *out) {
    (void)device, (void)count, (void)out;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    device_t found;
    find(index_of(device), -1, &found);
    *current = *pending = found.mig > 0;
    return found.mig < 0 ? NOT_SUPPORTED : driver();
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) {
    (void)device;
    *count = 7;
    return driver();
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned part, void **found_device) {
    device_t found;
    if (!find(index_of(device), part, &found)) return NOT_FOUND;
    *found_device = handle(index_of(device), part);
    return driver();
}
