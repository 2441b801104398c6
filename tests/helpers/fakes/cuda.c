/* A fake CUDA driver without devices, as on a machine without a GPU. Each initialization and device query is written to the file named
   by FAKE_CUDA_LOG, as a line `FUNCTION pid`. All other functions fail; the helper that builds this library generates their list. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, NOT_INITIALIZED = 3, NO_DEVICE = 100 };

static void note(const char *function) {
    char line[100];
    const char *path = getenv("FAKE_CUDA_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0644) : -1;
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%s %d\n", function, getpid());
    if (write(file, line, length) < 0) abort();
    close(file);
}

/* Returns FAKE_CUDA_INIT, but fails in a fork of a process that has called it. */
int cuInit(unsigned flags) {
    static int caller;
    const char *result = getenv("FAKE_CUDA_INIT");
    note(__func__);
    if (caller && caller != getpid()) return NOT_INITIALIZED;
    caller = getpid();
    return result ? atoi(result) : NO_DEVICE;
}
int cuDeviceGetCount(int *count) { note(__func__); *count = 0; return NO_DEVICE; }
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuGetErrorString(int error, const char **text) { *text = "fake"; return OK; }
int cuGetErrorName(int error, const char **text) { *text = "fake"; return OK; }
static int refused(void) { return NOT_INITIALIZED; }
int cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long flags, int *status) {
    void *found = dlsym(RTLD_DEFAULT, name);
    *to = found ? found : (void *)refused;
    if (status) *status = 0;
    return OK;
}
int cuGetProcAddress(const char *name, void **to, int version, unsigned long flags) {
    return cuGetProcAddress_v2(name, to, version, flags, NULL);
}
#define REFUSED(name) int name(void) { return NOT_INITIALIZED; }
#ifdef OTHERS
#include OTHERS
#endif
