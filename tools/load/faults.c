/* A disk that fails and a clock that jumps, for one process: a library to be loaded with LD_PRELOAD, which stands before libc's functions.

   CHAOS_CONTROL names a file of the size of `struct control`, which the processes map and whoever wants faults writes; CHAOS_FOLDER a folder
   without a slash at its end. Calls for files in the folder fail, as often as the control file says: EIO, ENOSPC, EINTR or fewer bytes than asked
   for. The file behind stdout or stderr counts, too. CLOCK_REALTIME is ahead by the seconds that the control file says.

   Faults do not reach what makes no call: a page of a mapped file that cannot be read is a SIGBUS, which no library can make out of a call. Nor do
   they reach the calls of libc itself, such as those of opendir, or writes that fail only when the system gets to them. */

#define _GNU_SOURCE
/* The functions are defined here under the names that 64-bit programs link to, so the headers must not rename them. */
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* In the order of FAULTS in tools/chaos. */
enum fault { OPEN, STAT, MAP, READ, SHORT_READ, WRITE, NO_SPACE, SHORT_WRITE, INTERRUPTED, SYNC, TRUNCATE, RENAME, N_FAULTS };

struct control {
    _Atomic uint64_t faults_per_million; /* calls */
    _Atomic int64_t clock_offset_s;
    _Atomic uint64_t state; /* of the generator of random numbers */
    _Atomic uint64_t n_faults[N_FAULTS];
};

#define MAX_FILES 65536
static struct control *control;
static const char *folder;
static size_t folder_len;
/* By file descriptor, whether its file is in the folder. */
static _Atomic unsigned char watched[MAX_FILES];

#define NEXT(name) ({ \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name); \
    next; \
})

static int in_folder(const char *path) {
    /* Rust calls statx without a path to find out whether there is such a call. The headers rule that out, so the compiler would drop the check. */
    const char *volatile given = path;
    path = given;
    return folder && path && !strncmp(path, folder, folder_len) && path[folder_len] == '/';
}

static int is_watched(int fd) { return control && fd >= 0 && fd < MAX_FILES && watched[fd]; }

static void watch(int fd, int yes) {
    if (fd >= 0 && fd < MAX_FILES) watched[fd] = (unsigned char)yes;
}

/* SplitMix64. */
static uint64_t draw(void) {
    uint64_t x = atomic_fetch_add(&control->state, 0x9e3779b97f4a7c15) + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

/* Draws whether a call fails in this way, and counts it. */
static int fails(enum fault fault) {
    if (!control || draw() % 1000000 >= control->faults_per_million) return 0;
    control->n_faults[fault]++;
    return 1;
}

/* The same for a path. */
static int path_fails(const char *path, enum fault fault) { return in_folder(path) && fails(fault); }

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CHAOS_CONTROL");
    folder = getenv("CHAOS_FOLDER");
    if (!path || !folder) return;
    folder_len = strlen(folder);
    int fd = NEXT(open)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) abort();
    void *mapped = NEXT(mmap)(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) abort();
    NEXT(close)(fd);
    for (int out = 1; out <= 2; out++) {
        char link[32] = "/proc/self/fd/0", target[4096];
        link[14] = (char)('0' + out);
        ssize_t n = readlink(link, target, sizeof target - 1);
        if (n > 0) {
            target[n] = 0;
            watch(out, in_folder(target));
        }
    }
    control = mapped;
}

/* Opening and closing. */

static int opened(int fd, const char *path) {
    if (fd >= 0) watch(fd, in_folder(path));
    return fd;
}

static int open_fails(const char *path, int flags) {
    if (!in_folder(path)) return 0;
    if ((flags & O_CREAT) && fails(NO_SPACE)) return errno = ENOSPC;
    if (fails(OPEN)) return errno = EIO;
    return 0;
}

#define OPEN_BODY(call) \
    va_list list; \
    va_start(list, flags); \
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0; \
    va_end(list); \
    if (open_fails(path, flags)) return -1; \
    return opened(call, path);

int open(const char *path, int flags, ...) { OPEN_BODY(NEXT(open)(path, flags, mode)) }
int open64(const char *path, int flags, ...) { OPEN_BODY(NEXT(open64)(path, flags, mode)) }
int openat(int at, const char *path, int flags, ...) { OPEN_BODY(NEXT(openat)(at, path, flags, mode)) }
int openat64(int at, const char *path, int flags, ...) { OPEN_BODY(NEXT(openat64)(at, path, flags, mode)) }

int close(int fd) {
    watch(fd, 0);
    return NEXT(close)(fd);
}

/* What is known of a file. */

#define STAT_BODY(is_hit, call) \
    if ((is_hit) && fails(STAT)) { \
        errno = EIO; \
        return -1; \
    } \
    return call;

int statx(int at, const char *restrict path, int flags, unsigned mask, struct statx *restrict out) {
    STAT_BODY(in_folder(path) || ((flags & AT_EMPTY_PATH) && is_watched(at)), NEXT(statx)(at, path, flags, mask, out))
}
int stat(const char *restrict path, struct stat *restrict out) { STAT_BODY(in_folder(path), NEXT(stat)(path, out)) }
int stat64(const char *restrict path, struct stat64 *restrict out) { STAT_BODY(in_folder(path), NEXT(stat64)(path, out)) }
int lstat64(const char *restrict path, struct stat64 *restrict out) { STAT_BODY(in_folder(path), NEXT(lstat64)(path, out)) }
int fstat(int fd, struct stat *out) { STAT_BODY(is_watched(fd), NEXT(fstat)(fd, out)) }
int fstat64(int fd, struct stat64 *out) { STAT_BODY(is_watched(fd), NEXT(fstat64)(fd, out)) }

static int map_fails(int fd) {
    if (!is_watched(fd) || !fails(MAP)) return 0;
    errno = ENOMEM;
    return 1;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    return map_fails(fd) ? MAP_FAILED : NEXT(mmap)(at, n, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t n, int protection, int flags, int fd, off64_t offset) {
    return map_fails(fd) ? MAP_FAILED : NEXT(mmap64)(at, n, protection, flags, fd, offset);
}

/* Reading and writing. `n` becomes smaller where a part is to be read or written. */

static int transfer_fails(int fd, size_t *n, int is_write) {
    if (!is_watched(fd)) return 0;
    if (is_write && fails(NO_SPACE)) return errno = ENOSPC;
    if (fails(is_write ? WRITE : READ)) return errno = EIO;
    if (fails(INTERRUPTED)) return errno = EINTR;
    if (*n > 1 && fails(is_write ? SHORT_WRITE : SHORT_READ)) *n = 1 + draw() % (*n - 1);
    return 0;
}

ssize_t read(int fd, void *out, size_t n) { return transfer_fails(fd, &n, 0) ? -1 : NEXT(read)(fd, out, n); }
ssize_t pread(int fd, void *out, size_t n, off_t at) { return transfer_fails(fd, &n, 0) ? -1 : NEXT(pread)(fd, out, n, at); }
ssize_t pread64(int fd, void *out, size_t n, off64_t at) { return transfer_fails(fd, &n, 0) ? -1 : NEXT(pread64)(fd, out, n, at); }
ssize_t write(int fd, const void *from, size_t n) { return transfer_fails(fd, &n, 1) ? -1 : NEXT(write)(fd, from, n); }
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { return transfer_fails(fd, &n, 1) ? -1 : NEXT(pwrite)(fd, from, n, at); }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { return transfer_fails(fd, &n, 1) ? -1 : NEXT(pwrite64)(fd, from, n, at); }

/* Of several parts the first one alone is a short transfer. */
ssize_t readv(int fd, const struct iovec *parts, int n_parts) {
    size_t n = (size_t)n_parts;
    return transfer_fails(fd, &n, 0) ? -1 : NEXT(readv)(fd, parts, (int)n);
}
ssize_t writev(int fd, const struct iovec *parts, int n_parts) {
    size_t n = (size_t)n_parts;
    return transfer_fails(fd, &n, 1) ? -1 : NEXT(writev)(fd, parts, (int)n);
}

/* Making it last. */

#define FAIL(is_hit, fault, number) \
    if ((is_hit) && fails(fault)) { \
        errno = number; \
        return -1; \
    }

int fsync(int fd) {
    FAIL(is_watched(fd), SYNC, EIO)
    return NEXT(fsync)(fd);
}
int fdatasync(int fd) {
    FAIL(is_watched(fd), SYNC, EIO)
    return NEXT(fdatasync)(fd);
}
int ftruncate(int fd, off_t n) {
    FAIL(is_watched(fd), TRUNCATE, EIO)
    return NEXT(ftruncate)(fd, n);
}
int ftruncate64(int fd, off64_t n) {
    FAIL(is_watched(fd), TRUNCATE, EIO)
    return NEXT(ftruncate64)(fd, n);
}
int rename(const char *from, const char *to) {
    if (path_fails(to, RENAME)) {
        errno = EIO;
        return -1;
    }
    return NEXT(rename)(from, to);
}

/* The clock. */

static int64_t offset(void) { return control ? control->clock_offset_s : 0; }

int clock_gettime(clockid_t clock, struct timespec *out) {
    int outcome = NEXT(clock_gettime)(clock, out);
    if (!outcome && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += offset();
    return outcome;
}
int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    int outcome = NEXT(gettimeofday)(out, zone);
    if (!outcome) out->tv_sec += offset();
    return outcome;
}
time_t time(time_t *out) {
    time_t now = NEXT(time)(NULL) + offset();
    if (out) *out = now;
    return now;
}
