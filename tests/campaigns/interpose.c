/* Counts the operations of a process on files below some folders, and kills the process at the k-th.
 *
 * Loaded by LD_PRELOAD; idle until interpose_arm is called, so that each fork of one warm process has its own k.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FDS 4096

static char folders[8][PATH_MAX];
static int folder_count;
static pid_t owner;
static long kill_at;
static int torn;
static int trace = -1;
static atomic_long count;
static char written[FDS]; /* 1: below a folder and open for writing, 2: has been written */

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

/* `list`: folders with ':' between. `k`: from 1; 0: only count. `half`: half of a write is done before the death.
 * `out`: a file descriptor for one line per operation, or -1. */
void interpose_arm(const char *list, long k, int half, int out) {
    char copy[8 * PATH_MAX], *rest = copy, *one;
    strncpy(copy, list, sizeof copy - 1);
    copy[sizeof copy - 1] = 0;
    folder_count = 0;
    while ((one = strsep(&rest, ":")) != NULL && folder_count < 8)
        snprintf(folders[folder_count++], PATH_MAX, "%s", one);
    memset(written, 0, sizeof written);
    atomic_store(&count, 0);
    kill_at = k, torn = half, trace = out, owner = getpid();
}

long interpose_count(void) { return atomic_load(&count); }

static int below(const char *path) {
    for (int i = 0; i < folder_count; i++) {
        size_t length = strlen(folders[i]);
        if (strncmp(path, folders[i], length) == 0 && (path[length] == '/' || path[length] == 0)) return 1;
    }
    return 0;
}

static int concerns(int dir, const char *path, char *full) {
    char base[PATH_MAX];
    if (folder_count == 0 || path == NULL || getpid() != owner) return 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
        return below(full);
    }
    if (dir == AT_FDCWD) {
        if (getcwd(base, sizeof base) == NULL) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
    }
    if (strlen(base) + strlen(path) + 2 > PATH_MAX) return 0;
    strcpy(full, base), strcat(full, "/"), strcat(full, path);
    return below(full);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Count one operation; return whether it is the one at which a write is to be torn. */
static int counted(const char *what, const char *path, int may_tear) {
    long now = atomic_fetch_add(&count, 1) + 1;
    if (trace >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%ld %s %s\n", now, what, path);
        syscall(SYS_write, trace, line, (size_t)length);
    }
    if (now != kill_at) return 0;
    if (torn && may_tear) return 1;
    die();
    return 0;
}

static void opened(int fd, int flags, int concerned) {
    if (fd >= 0 && fd < FDS) written[fd] = concerned && (flags & O_ACCMODE) != O_RDONLY;
}

static int is_written(int fd, char *path) {
    if (folder_count == 0 || fd < 0 || fd >= FDS || !written[fd] || getpid() != owner) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return 1;
}

#define OPENS(flags) (((flags) & (O_CREAT | O_TRUNC)) || ((flags) & O_ACCMODE) != O_RDONLY)
#define MODE(flags, last) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list args; \
        va_start(args, last); \
        mode = va_arg(args, mode_t); \
        va_end(args); \
    }
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        char full[PATH_MAX]; \
        MODE(flags, flags) \
        int concerned = concerns(AT_FDCWD, path, full); \
        if (concerned && OPENS(flags)) counted("open", full, 0); \
        int fd = REAL(name)(path, flags, mode); \
        opened(fd, flags, concerned); \
        return fd; \
    }
#define OPENAT(name) \
    int name(int dir, const char *path, int flags, ...) { \
        char full[PATH_MAX]; \
        MODE(flags, flags) \
        int concerned = concerns(dir, path, full); \
        if (concerned && OPENS(flags)) counted("open", full, 0); \
        int fd = REAL(name)(dir, path, flags, mode); \
        opened(fd, flags, concerned); \
        return fd; \
    }
#define CREAT(name) \
    int name(const char *path, mode_t mode) { \
        char full[PATH_MAX]; \
        int concerned = concerns(AT_FDCWD, path, full); \
        if (concerned) counted("open", full, 0); \
        int fd = REAL(name)(path, mode); \
        opened(fd, O_WRONLY, concerned); \
        return fd; \
    }
#define FOPEN(name) \
    FILE *name(const char *path, const char *how) { \
        char full[PATH_MAX]; \
        int writes = strpbrk(how, "wa+") != NULL, concerned = concerns(AT_FDCWD, path, full); \
        if (concerned && writes) counted("open", full, 0); \
        FILE *file = REAL(name)(path, how); \
        if (file != NULL) opened(fileno(file), writes ? O_WRONLY : O_RDONLY, concerned); \
        return file; \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
CREAT(creat)
CREAT(creat64)
FOPEN(fopen)
FOPEN(fopen64)

/* A torn write: half of it, on disk for whoever looks next, and then nothing more. */
#define WRITES(fd, size, half) \
    char path[PATH_MAX]; \
    if (is_written(fd, path)) { \
        if (counted("write", path, 1)) { \
            half; \
            die(); \
        } \
        written[fd] = 2; \
    }

ssize_t write(int fd, const void *data, size_t size) {
    WRITES(fd, size, REAL(write)(fd, data, size / 2))
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    WRITES(fd, size, REAL(pwrite)(fd, data, size / 2, at))
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    WRITES(fd, size, REAL(pwrite64)(fd, data, size / 2, at))
    return REAL(pwrite64)(fd, data, size, at);
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
    WRITES(fd, number, REAL(write)(fd, parts[0].iov_base, parts[0].iov_len / 2))
    return REAL(writev)(fd, parts, number);
}

ssize_t sendfile(int fd, int from, off_t *at, size_t size) {
    WRITES(fd, size, REAL(sendfile)(fd, from, at, size / 2))
    return REAL(sendfile)(fd, from, at, size);
}

ssize_t sendfile64(int fd, int from, off64_t *at, size_t size) {
    WRITES(fd, size, REAL(sendfile64)(fd, from, at, size / 2))
    return REAL(sendfile64)(fd, from, at, size);
}

ssize_t copy_file_range(int from, off64_t *at, int fd, off64_t *to, size_t size, unsigned int flags) {
    WRITES(fd, size, REAL(copy_file_range)(from, at, fd, to, size / 2, flags))
    return REAL(copy_file_range)(from, at, fd, to, size, flags);
}

#define BY_FD(name, arguments, call) \
    int name arguments { \
        char path[PATH_MAX]; \
        if (is_written(fd, path)) counted(#name, path, 0); \
        return REAL(name) call; \
    }

BY_FD(ftruncate, (int fd, off_t size), (fd, size))
BY_FD(ftruncate64, (int fd, off64_t size), (fd, size))
BY_FD(fchmod, (int fd, mode_t mode), (fd, mode))

/* Folders are flushed too, and they are open for reading. */
#define FLUSH(name) \
    int name(int fd) { \
        char path[PATH_MAX], link[64]; \
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd); \
        if (folder_count && getpid() == owner) { \
            ssize_t length = readlink(link, path, sizeof path - 1); \
            path[length < 0 ? 0 : length] = 0; \
            if (below(path)) counted(#name, path, 0); \
        } \
        return REAL(name)(fd); \
    }

FLUSH(fsync)
FLUSH(fdatasync)

int close(int fd) {
    char path[PATH_MAX];
    if (is_written(fd, path) && written[fd] == 2) counted("close", path, 0);
    if (fd >= 0 && fd < FDS && getpid() == owner) written[fd] = 0;
    return REAL(close)(fd);
}

#define BY_PATH(name, dir, path, arguments, call) \
    int name arguments { \
        char full[PATH_MAX]; \
        if (concerns(dir, path, full)) counted(#name, full, 0); \
        return REAL(name) call; \
    }

BY_PATH(rename, AT_FDCWD, new, (const char *old, const char *new), (old, new))
BY_PATH(renameat, to, new, (int from, const char *old, int to, const char *new), (from, old, to, new))
BY_PATH(renameat2, to, new, (int from, const char *old, int to, const char *new, unsigned int flags),
        (from, old, to, new, flags))
BY_PATH(unlink, AT_FDCWD, path, (const char *path), (path))
BY_PATH(unlinkat, dir, path, (int dir, const char *path, int flags), (dir, path, flags))
BY_PATH(rmdir, AT_FDCWD, path, (const char *path), (path))
BY_PATH(mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
BY_PATH(mkdirat, dir, path, (int dir, const char *path, mode_t mode), (dir, path, mode))
BY_PATH(link, AT_FDCWD, new, (const char *old, const char *new), (old, new))
BY_PATH(linkat, to, new, (int from, const char *old, int to, const char *new, int flags), (from, old, to, new, flags))
BY_PATH(symlink, AT_FDCWD, path, (const char *target, const char *path), (target, path))
BY_PATH(symlinkat, dir, path, (const char *target, int dir, const char *path), (target, dir, path))
BY_PATH(chmod, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
BY_PATH(truncate, AT_FDCWD, path, (const char *path, off_t size), (path, size))
