/* A fake NVML. It answers from the file named by FAKE_NVML and reads it again for each query, so that a test may change it.

   A line is `key value`: `driver`, `cuda`, `count`, `gpu0.name`, `gpu0.process` (one line each: pid and bytes), `gpu0.slice1.uuid` ...
   `gpu0.living` is like `gpu0.process`, but counts only while the process lives, and then also as used memory.
   `error.FUNCTION CODE` makes a function fail for every GPU, `gpu0.error.FUNCTION CODE` for one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LINE = 400 };
enum { SLICES = 16 };
typedef int Result;
typedef void *Device; /* 1 + gpu * SLICES + (0, or 1 + slice) */
struct Memory { unsigned long long total, free, used; };
struct Process { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

static int find(const char *key, int nth, char *value) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE];
    int found = 0;
    size_t length = strlen(key);
    while (file && !found && fgets(line, LINE, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == ' ' && nth-- == 0) {
            strcpy(value, line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static unsigned long long number(const char *key, unsigned long long otherwise) {
    char value[LINE];
    return find(key, 0, value) ? strtoull(value, NULL, 10) : otherwise;
}

static const char *of(Device device, const char *name) {
    static char key[LINE];
    long id = (long)device - 1;
    if (id % SLICES) snprintf(key, LINE, "gpu%ld.slice%ld.%s", id / SLICES, id % SLICES - 1, name);
    else snprintf(key, LINE, "gpu%ld.%s", id / SLICES, name);
    return key;
}

static Result refusal(Device device, const char *function) {
    char key[LINE];
    snprintf(key, LINE, "error.%s", function);
    Result general = (Result)number(key, OK);
    return general || !device ? general : (Result)number(of(device, key), OK);
}
#define ASK(device) do { Result refused = refusal(device, __func__); if (refused) return refused; } while (0)

static Result text(const char *key, char *to, unsigned size) {
    char value[LINE];
    if (!find(key, 0, value)) return NOT_SUPPORTED;
    snprintf(to, size, "%s", value);
    return OK;
}

Result nvmlInitWithFlags(unsigned flags) { ASK(NULL); return OK; }
Result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Result nvmlInit(void) { return nvmlInitWithFlags(0); }
Result nvmlShutdown(void) { ASK(NULL); return OK; }
const char *nvmlErrorString(Result result) { return "an error without a name"; }
Result nvmlSystemGetDriverVersion(char *to, unsigned size) { ASK(NULL); return text("driver", to, size); }
Result nvmlSystemGetCudaDriverVersion_v2(int *to) { ASK(NULL); *to = (int)number("cuda", 0); return OK; }
Result nvmlSystemGetCudaDriverVersion(int *to) { return nvmlSystemGetCudaDriverVersion_v2(to); }
Result nvmlDeviceGetCount_v2(unsigned *to) { ASK(NULL); *to = (unsigned)number("count", 0); return OK; }
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *to) {
    *to = (Device)(long)(1 + index * SLICES);
    ASK(*to);
    return index < number("count", 0) ? OK : INVALID;
}
Result nvmlDeviceGetName(Device device, char *to, unsigned size) { ASK(device); return text(of(device, "name"), to, size); }
Result nvmlDeviceGetUUID(Device device, char *to, unsigned size) { ASK(device); return text(of(device, "uuid"), to, size); }
Result nvmlDeviceGetIndex(Device device, unsigned *to) {
    ASK(device);
    *to = (unsigned)(((long)device - 1) / SLICES);
    return OK;
}
Result nvmlDeviceGetHandleByUUID(const char *uuid, Device *to) {
    unsigned count = (unsigned)number("count", 0);
    for (long id = 1; id <= (long)count * SLICES; id++) {
        char found[LINE];
        if (!text(of((Device)id, "uuid"), found, LINE) && !strcmp(found, uuid)) { *to = (Device)id; ASK(*to); return OK; }
    }
    return NOT_FOUND;
}
Result nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    char value[LINE];
    ASK(device);
    if (!find(of(device, "capability"), 0, value)) return NOT_SUPPORTED;
    return sscanf(value, "%d.%d", major, minor) == 2 ? OK : INVALID;
}

/* Whether a process holds memory. One that has ended holds none, even if its parent has not waited for it yet. */
static int holds(unsigned pid) {
    char path[64], stat[LINE] = "", *end;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    fread(stat, 1, LINE - 1, file);
    fclose(file);
    end = strrchr(stat, ')'); /* "pid (name) state ..." */
    return end && end[1] && end[2] != 'Z';
}

/* The next process at or after number `nth` of what `name` lists; its number, or -1 where there is none. */
static int next_process(Device device, const char *name, int nth, struct Process *to) {
    char value[LINE];
    for (; find(of(device, name), nth, value); nth++) {
        memset(to, 0, sizeof *to);
        sscanf(value, "%u %llu", &to->pid, &to->used);
        if (strcmp(name, "living") || holds(to->pid)) return nth;
    }
    return -1;
}

Result nvmlDeviceGetMemoryInfo(Device device, struct Memory *to) {
    struct Process process;
    ASK(device);
    to->total = number(of(device, "total"), 0);
    to->used = number(of(device, "used"), 0);
    for (int nth = 0; (nth = next_process(device, "living", nth, &process)) >= 0; nth++) to->used += process.used;
    to->free = to->total - to->used;
    return to->total ? OK : NOT_SUPPORTED;
}
Result nvmlDeviceGetComputeMode(Device device, int *to) {
    ASK(device);
    *to = (int)number(of(device, "mode"), 0);
    return OK;
}
Result nvmlDeviceGetMigMode(Device device, unsigned *now, unsigned *later) {
    char value[LINE];
    ASK(device);
    if (!find(of(device, "mig"), 0, value)) return NOT_SUPPORTED;
    *now = *later = (unsigned)atoi(value);
    return OK;
}
Result nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *to) { ASK(device); *to = 7; return OK; }
Result nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *to) {
    char value[LINE];
    ASK(device);
    *to = (Device)((long)device + 1 + index);
    return find(of(*to, "uuid"), 0, value) ? OK : NOT_FOUND;
}
Result nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct Process *to) {
    static const char *const lists[] = {"process", "living"};
    struct Process process;
    unsigned found = 0, room = *count;
    ASK(device);
    for (int list = 0; list < 2; list++)
        for (int nth = 0; (nth = next_process(device, lists[list], nth, &process)) >= 0; nth++, found++)
            if (found < room && to) to[found] = process;
    *count = found;
    return found && (!to || found > room) ? TOO_SMALL : OK;
}
Result nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, struct Process *to) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, to);
}
Result nvmlDeviceGetP2PStatus(Device one, Device other, int kind, int *to) { ASK(one); *to = 0; return OK; }
