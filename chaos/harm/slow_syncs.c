/* Preloaded into a program, this makes each of its syncs take longer, by as many microseconds as the first eight bytes
 * of a file say at that moment (see slow_syncs.py). Everything else about a sync, its result too, is the system's. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile uint64_t *latency_us;

__attribute__((constructor)) static void find_file(void)
{
    const char *path = getenv("WARREN_SYNC_LATENCY_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *latency_us, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        latency_us = mapped;
    close(file);
}

static void take_longer(void)
{
    uint64_t us = latency_us ? *latency_us : 0;
    struct timespec left = {us / 1000000, us % 1000000 * 1000};
    while (us && nanosleep(&left, &left) == -1 && errno == EINTR)
        ;
}

#define SLOWED(name)                                       \
    int name(int file)                                     \
    {                                                      \
        int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, #name); \
        take_longer();                                     \
        return real(file);                                 \
    }

SLOWED(fsync)
SLOWED(fdatasync)
SLOWED(syncfs)
