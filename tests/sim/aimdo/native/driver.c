/* A stand-in for the CUDA driver: it counts bytes against a capacity and does nothing else.
 *
 * comfy-aimdo's binary finds it as libcuda.so.1 and keeps its books over it, so that its policy can be watched
 * without a card. Handles are heap cells that hold their size. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef int Result;
typedef unsigned long long Pointer;

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500, PER_THREAD_STREAM = 2 };

static size_t capacity, used;
static const char *missing = "none";

void stand_in_capacity(size_t bytes) { capacity = bytes; }
size_t stand_in_used(void) { return used; }
const char *stand_in_missing(void) { return missing; }

/* The binary patches the first bytes of some of these, so none may be shorter than a jump. */
static Result done(void) {
    volatile int steps = 0;
    for (int i = 0; i < 3; i++) {
        steps += i;
    }
    return steps - 3;
}

static Result take(Pointer *handle, size_t size) {
    size_t *cell;

    if (used + size > capacity || !(cell = malloc(sizeof(*cell)))) {
        return OUT_OF_MEMORY;
    }
    used += size;
    *cell = size;
    *handle = (Pointer)(uintptr_t)cell;
    return done();
}

static Result give(Pointer handle) {
    size_t *cell = (size_t *)(uintptr_t)handle;

    used -= *cell;
    free(cell);
    return done();
}

Result cuInit(unsigned flags) { return done(); }
Result cuGetErrorString(Result error, const char **text) { *text = "stand-in"; return done(); }
Result cuCtxGetDevice(int *device) { *device = 0; return done(); }
Result cuCtxSynchronize(void) { return done(); }
Result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return done(); }
Result cuDeviceGetAttribute(int *value, int name, int device) { *value = 0; return done(); }
Result cuDeviceTotalMem(size_t *bytes, int device) { *bytes = capacity; return done(); }
Result cuDeviceGetName(char *name, int size, int device) { strncpy(name, "stand-in", size); return done(); }
Result cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0, 16); return done(); }

/* Ample, so that only the books of the binary itself decide, not a poll that depends on the time of day. */
Result cuMemGetInfo(size_t *free, size_t *total) { *free = (size_t)1 << 50; *total = capacity; return done(); }

Result cuMemAlloc(Pointer *memory, size_t size) { return take(memory, size) | done(); }
Result cuMemFree(Pointer memory) { return give(memory) | done(); }
Result cuMemAllocAsync(Pointer *memory, size_t size, void *stream) { return take(memory, size) | done(); }
Result cuMemFreeAsync(Pointer memory, void *stream) { return give(memory) | done(); }
Result cuMemAllocAsync_ptsz(Pointer *memory, size_t size, void *stream) { return take(memory, size) | done(); }
Result cuMemFreeAsync_ptsz(Pointer memory, void *stream) { return give(memory) | done(); }
Result cuMemAllocHost(void **memory, size_t size) { *memory = malloc(size); return done(); }
Result cuMemFreeHost(void *memory) { free(memory); return done(); }
Result cuMemHostRegister(void *memory, size_t size, unsigned flags) { return done(); }
Result cuMemHostUnregister(void *memory) { return done(); }

Result cuMemAddressReserve(Pointer *base, size_t size, size_t alignment, Pointer hint, Pointer flags) {
    void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    *base = (Pointer)(uintptr_t)range;
    return range == MAP_FAILED ? OUT_OF_MEMORY : done();
}

Result cuMemAddressFree(Pointer base, size_t size) { munmap((void *)(uintptr_t)base, size); return done(); }
Result cuMemCreate(Pointer *handle, size_t size, void *kind, Pointer flags) { return take(handle, size); }
Result cuMemRelease(Pointer handle) { return give(handle); }
Result cuMemMap(Pointer base, size_t size, size_t offset, Pointer handle, Pointer flags) { return done(); }
Result cuMemSetAccess(Pointer base, size_t size, void *access, size_t count) { return done(); }
Result cuMemUnmap(Pointer base, size_t size) { return done(); }
Result cuMemcpyHtoDAsync(Pointer to, void *from, size_t size, void *stream) { return done(); }
Result cuMemcpyDtoHAsync(void *to, Pointer from, size_t size, void *stream) { return done(); }
Result cuEventCreate(void **event, unsigned flags) { return done(); }
Result cuEventDestroy(void *event) { return done(); }
Result cuEventRecord(void *event, void *stream) { return done(); }
Result cuEventSynchronize(void *event) { return done(); }

#define ENTRY(name) { #name, (void *)name }

static const struct {
    const char *name;
    void *function;
} entries[] = {
    ENTRY(cuInit), ENTRY(cuGetErrorString), ENTRY(cuCtxGetDevice), ENTRY(cuCtxSynchronize), ENTRY(cuDeviceGet),
    ENTRY(cuDeviceGetAttribute), ENTRY(cuDeviceTotalMem), ENTRY(cuDeviceGetName), ENTRY(cuDeviceGetUuid),
    ENTRY(cuMemGetInfo), ENTRY(cuMemAlloc), ENTRY(cuMemFree), ENTRY(cuMemAllocAsync), ENTRY(cuMemFreeAsync),
    ENTRY(cuMemAllocHost), ENTRY(cuMemFreeHost), ENTRY(cuMemHostRegister), ENTRY(cuMemHostUnregister),
    ENTRY(cuMemAddressReserve), ENTRY(cuMemAddressFree), ENTRY(cuMemCreate), ENTRY(cuMemRelease), ENTRY(cuMemMap),
    ENTRY(cuMemSetAccess), ENTRY(cuMemUnmap), ENTRY(cuMemcpyHtoDAsync),
    ENTRY(cuMemcpyDtoHAsync), ENTRY(cuEventCreate), ENTRY(cuEventDestroy), ENTRY(cuEventRecord), ENTRY(cuEventSynchronize),
};

Result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags, void *status) {
    *function = NULL;
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        if (!strcmp(name, entries[i].name)) {
            *function = entries[i].function;
        }
    }
    if (flags == PER_THREAD_STREAM && !strcmp(name, "cuMemAllocAsync")) {
        *function = (void *)cuMemAllocAsync_ptsz;
    }
    if (flags == PER_THREAD_STREAM && !strcmp(name, "cuMemFreeAsync")) {
        *function = (void *)cuMemFreeAsync_ptsz;
    }
    if (!*function) {
        missing = name;
    }
    return *function ? SUCCESS : NOT_FOUND;
}
