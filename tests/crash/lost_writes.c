/* A disk whose unsynced bytes can be lost, as a library to preload into the broker.
 *
 * Comes in: the broker's file calls below STORAGE_EMBEDDED_PATH, and switches in a shared page
 * (LOST_WRITES_SIDE/control). Goes out: the same calls, made; and before each of them a record in
 * LOST_WRITES_SIDE/journal of what it takes to undo it, and after each sync a record of what can't
 * be undone any more. `lost_writes.rs` reads the journal after the broker was killed and takes
 * back what was never synced. Syncs aren't passed on: for a process that is killed, the page cache
 * is as good as a disk, and the test becomes faster.
 *
 * The switches make writes or syncs fail or wait. A failed sync loses its bytes for good: a later
 * one that succeeds doesn't cover them, as on Linux.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OUTSIDE = 0, A_FILE = 1, A_FOLDER = 2 };
enum { WRITE = 1, SYNC, CREATE, MKDIR, RENAME, UNLINK, RMDIR, DIRSYNC, SOCKET, SYNC_FAILED };

/* The first bytes of the control file; lost_writes.rs has the same offsets. */
struct control {
    volatile uint32_t write_error;
    volatile uint32_t sync_error;
    volatile uint32_t sync_wait_us;
    volatile uint32_t trace;
    volatile uint32_t scope; /* 0: every file; 1: the log's only; 2: all but the log's */
    volatile uint32_t room_limited;
    volatile uint64_t room; /* bytes that may still be written while room_limited */
    volatile uint64_t syncs;
    volatile uint64_t writes;
};

struct record {
    uint32_t magic;
    uint32_t kind;
    uint64_t seq, ino, a, b, c, d;
    uint32_t len1, len2;
};

#define FDS 65536
static struct {
    uint8_t kind;
    uint8_t of_log;
    uint64_t ino;
} table[FDS];

static char root[PATH_MAX], side[PATH_MAX];
static size_t root_len;
static int journal = -1;
static struct control *control;
static uint64_t sequence;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void broken(const char *what) {
    dprintf(2, "lost_writes: %s: %s\n", what, strerror(errno));
    _exit(99);
}

__attribute__((constructor)) static void begin(void) {
    const char *data = getenv("STORAGE_EMBEDDED_PATH"), *beside = getenv("LOST_WRITES_SIDE");
    const char *wait = getenv("LOST_WRITES_SYNC_WAIT_US");
    char name[PATH_MAX + 32];
    if (!data || !beside) return;
    snprintf(root, sizeof root, "%s", data);
    root_len = strlen(root);
    if (syscall(SYS_mkdir, beside, 0777) != 0 && errno != EEXIST) broken("side folder");
    if (!realpath(beside, side)) broken("side folder");
    snprintf(name, sizeof name, "%s/journal", side);
    journal = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (journal < 0) broken("journal");
    snprintf(name, sizeof name, "%s/control", side);
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) broken("control");
    struct stat st;
    if (fstat(fd, &st) != 0) broken("control");
    int fresh = st.st_size == 0;
    if (syscall(SYS_ftruncate, fd, 4096) != 0) broken("control");
    control = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (control == MAP_FAILED) broken("control");
    if (fresh && wait) control->sync_wait_us = atoi(wait);
    control->syncs = control->writes = 0;
    syscall(SYS_close, fd);
}

/* --- the journal; everything here is called with the lock held --- */

static uint64_t put(uint32_t kind, uint64_t ino, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                    const void *one, size_t len1, const void *two, size_t len2) {
    struct record head = {0x4C575231, kind, ++sequence, ino, a, b, c, d, len1, len2};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)one, len1}, {(void *)two, len2}};
    ssize_t all = sizeof head + len1 + len2;
    if (syscall(SYS_writev, journal, parts, 3) != all) broken("journal");
    return head.seq;
}

static int all_zero(const char *bytes, size_t len) {
    return len == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}

/* Remembers `[at, at + len)` and the size, before either changes; `size` is the size after. */
static void remember(int fd, uint64_t at, uint64_t len, uint64_t size, const void *fresh,
                     size_t fresh_len) {
    struct stat st;
    if (fstat(fd, &st) != 0) broken("fstat");
    uint64_t old_size = st.st_size, kept = 0;
    if (at < old_size) kept = at + len < old_size ? len : old_size - at;
    char *old = NULL;
    if (kept > 0) {
        old = mmap(NULL, kept, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (old == MAP_FAILED) broken("memory");
        /* The broker's handle may be open for writing only. */
        char name[64];
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        int again = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
        if (again < 0) broken("reading back");
        for (uint64_t done = 0; done < kept;) {
            ssize_t got = syscall(SYS_pread64, again, old + done, kept - done, at + done);
            if (got <= 0) broken("reading back");
            done += got;
        }
        syscall(SYS_close, again);
    }
    size_t len1 = all_zero(old, kept) ? 0 : kept;
    if (size < old_size && at + len < old_size) size = old_size;
    put(WRITE, st.st_ino, at, len, old_size, size, old, len1, fresh, fresh_len);
    if (old) munmap(old, kept);
}

static int below_root(const char *path) {
    return root_len && strncmp(path, root, root_len) == 0
        && (path[root_len] == '/' || path[root_len] == 0);
}

/* The folder that has the root's own name. */
static int is_parent(const char *path) {
    size_t len = strlen(path);
    return len < root_len && strncmp(path, root, len) == 0 && root[len] == '/'
        && !strchr(root + len + 1, '/');
}

/* An absolute path, without a look at links. */
static void whole(int dir, const char *path, char out[PATH_MAX]) {
    char name[64], base[PATH_MAX];
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
        return;
    }
    if (dir == AT_FDCWD) snprintf(name, sizeof name, "/proc/self/cwd");
    else snprintf(name, sizeof name, "/proc/self/fd/%d", dir);
    ssize_t len = readlink(name, base, sizeof base - 1);
    base[len < 0 ? 0 : len] = 0;
    if ((size_t)snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) out[0] = 0;
}

static int exists(const char *path, struct stat *st) {
    return lstat(path, st) == 0;
}

/* Keeps the file under a second name; without that its bytes would be gone. */
static int save(const char *path, uint64_t seq) {
    char name[PATH_MAX + 64];
    struct stat st;
    if (!exists(path, &st)) return 0;
    snprintf(name, sizeof name, "%s/saved.%llu", side, (unsigned long long)seq);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, name, 0) != 0) broken("saving");
    return 1;
}

static int is_of_log(const char *path) { return strncmp(path + root_len, "/log", 4) == 0; }

static int in_scope(int of_log) {
    return control->scope == 0 || (control->scope == 1) == (of_log != 0);
}

static int tracked(int fd) { return fd >= 0 && fd < FDS ? table[fd].kind : OUTSIDE; }

/* 0, or what a write to this file is to fail with; shortens it to the room there is. */
static int refuse(int of_log, size_t *len) {
    if (!control || !in_scope(of_log)) return 0;
    if (control->write_error) return control->write_error;
    if (control->room_limited) {
        if (control->room == 0 && *len > 0) return ENOSPC;
        if (*len > control->room) *len = control->room;
        control->room -= *len;
    }
    return 0;
}

/* --- opening and closing --- */

static int do_open(int dir, const char *path, int flags, mode_t mode) {
    char name[PATH_MAX];
    struct stat st;
    if (!control) return syscall(SYS_openat, dir, path, flags, mode);
    whole(dir, path, name);
    if (!below_root(name)) {
        int fd = syscall(SYS_openat, dir, path, flags, mode);
        if (fd >= 0 && fd < FDS) table[fd].kind = is_parent(name) ? A_FOLDER : OUTSIDE;
        return fd;
    }
    pthread_mutex_lock(&lock);
    int there = exists(name, &st), of_log = is_of_log(name);
    size_t none = 0;
    int error = !there && (flags & O_CREAT) ? refuse(of_log, &none) : 0;
    if (error) {
        pthread_mutex_unlock(&lock);
        errno = error;
        return -1;
    }
    if (there && (flags & O_TRUNC) && st.st_size > 0) {
        int old = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
        if (old >= 0) remember(old, 0, st.st_size, 0, NULL, 0);
        if (old >= 0) syscall(SYS_close, old);
    }
    int fd = syscall(SYS_openat, dir, path, flags, mode);
    int failed = errno;
    if (fd >= 0 && fd < FDS && fstat(fd, &st) == 0) {
        table[fd].kind = S_ISDIR(st.st_mode) ? A_FOLDER : S_ISREG(st.st_mode) ? A_FILE : OUTSIDE;
        table[fd].ino = st.st_ino;
        table[fd].of_log = of_log;
        if (!there) put(CREATE, st.st_ino, 0, 0, 0, 0, name, strlen(name), NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = failed;
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return do_open(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return do_open(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return do_open(dir, path, flags, mode); }

int close(int fd) {
    if (fd >= 0 && fd < FDS) table[fd].kind = OUTSIDE;
    return syscall(SYS_close, fd);
}

static void also(int fd, int copy) {
    if (copy >= 0 && copy < FDS && fd >= 0 && fd < FDS) table[copy] = table[fd];
}

int dup(int fd) {
    int copy = syscall(SYS_dup, fd);
    also(fd, copy);
    return copy;
}

static int do_fcntl(int fd, int what, long argument) {
    int answer = syscall(SYS_fcntl, fd, what, argument);
    if (what == F_DUPFD || what == F_DUPFD_CLOEXEC) also(fd, answer);
    return answer;
}

#define ARGUMENT(what) \
    va_list list; \
    va_start(list, what); \
    long argument = va_arg(list, long); \
    va_end(list);

int fcntl(int fd, int what, ...) { ARGUMENT(what) return do_fcntl(fd, what, argument); }
int fcntl64(int fd, int what, ...) { ARGUMENT(what) return do_fcntl(fd, what, argument); }

/* --- writing --- */

#define TRACED (1 << 19)

/* `at` of -1 is the file's own place. */
static ssize_t do_write(int fd, const struct iovec *parts, int count, off_t at) {
    size_t len = 0;
    for (int i = 0; i < count; i++) len += parts[i].iov_len;
    pthread_mutex_lock(&lock);
    control->writes++;
    size_t allowed = len;
    int error = refuse(table[fd].of_log, &allowed);
    if (error) {
        pthread_mutex_unlock(&lock);
        errno = error;
        return -1;
    }
    struct stat st;
    if (fstat(fd, &st) != 0) broken("fstat");
    uint64_t from = at;
    if (at == -1) {
        int appends = syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND;
        from = appends ? st.st_size : syscall(SYS_lseek, fd, 0, SEEK_CUR);
    }
    uint64_t size = from + allowed > (uint64_t)st.st_size ? from + allowed : (uint64_t)st.st_size;
    struct iovec cut[64];
    int used = 0;
    size_t left = allowed;
    for (int i = 0; i < count && i < 64 && left > 0; i++) {
        cut[used] = parts[i];
        if (cut[used].iov_len > left) cut[used].iov_len = left;
        left -= cut[used++].iov_len;
    }
    if (left > 0) { /* more than 64 parts: a short write */
        allowed -= left;
        if (control->room_limited && in_scope(table[fd].of_log)) control->room += left;
        size = from + allowed > (uint64_t)st.st_size ? from + allowed : (uint64_t)st.st_size;
    }
    char *fresh = NULL;
    size_t traced = 0;
    if (control->trace) {
        fresh = mmap(NULL, TRACED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < used && traced < TRACED; i++) {
            size_t step = cut[i].iov_len < TRACED - traced ? cut[i].iov_len : TRACED - traced;
            memcpy(fresh + traced, cut[i].iov_base, step);
            traced += step;
        }
    }
    remember(fd, from, allowed, size, fresh, traced);
    if (fresh) munmap(fresh, TRACED);
    ssize_t wrote = at == -1 ? syscall(SYS_writev, fd, cut, used)
                             : syscall(SYS_pwritev, fd, cut, used, (long)at, 0L);
    int failed = errno;
    pthread_mutex_unlock(&lock);
    errno = failed;
    return wrote;
}

static void trace(int fd, const void *bytes, size_t len) {
    if (!control || !control->trace) return;
    pthread_mutex_lock(&lock);
    put(SOCKET, 0, fd, len, 0, 0, bytes, len < 256 ? len : 256, NULL, 0);
    pthread_mutex_unlock(&lock);
}

ssize_t write(int fd, const void *bytes, size_t len) {
    struct iovec part = {(void *)bytes, len};
    if (tracked(fd) == A_FILE) return do_write(fd, &part, 1, -1);
    trace(fd, bytes, len);
    return syscall(SYS_write, fd, bytes, len);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (tracked(fd) == A_FILE) return do_write(fd, parts, count, -1);
    for (int i = 0; i < count; i++) trace(fd, parts[i].iov_base, parts[i].iov_len);
    return syscall(SYS_writev, fd, parts, count);
}

ssize_t send(int fd, const void *bytes, size_t len, int flags) {
    trace(fd, bytes, len);
    return syscall(SYS_sendto, fd, bytes, len, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    for (size_t i = 0; i < message->msg_iovlen; i++)
        trace(fd, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
    return syscall(SYS_sendmsg, fd, message, flags);
}

static ssize_t do_pwrite(int fd, const void *bytes, size_t len, off_t at) {
    struct iovec part = {(void *)bytes, len};
    if (tracked(fd) == A_FILE) return do_write(fd, &part, 1, at);
    return syscall(SYS_pwrite64, fd, bytes, len, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) { return do_pwrite(fd, bytes, len, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) { return do_pwrite(fd, bytes, len, at); }

static ssize_t do_pwritev(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    if (tracked(fd) == A_FILE) return do_write(fd, parts, count, at);
    return syscall(SYS_pwritev2, fd, parts, count, (long)at, 0L, flags);
}

ssize_t pwritev(int fd, const struct iovec *p, int n, off_t at) { return do_pwritev(fd, p, n, at, 0); }
ssize_t pwritev64(int fd, const struct iovec *p, int n, off64_t at) { return do_pwritev(fd, p, n, at, 0); }
ssize_t pwritev2(int fd, const struct iovec *p, int n, off_t at, int flags) { return do_pwritev(fd, p, n, at, flags); }
ssize_t pwritev64v2(int fd, const struct iovec *p, int n, off64_t at, int flags) { return do_pwritev(fd, p, n, at, flags); }

/* Other ways to fill a file are not to be had: their callers fall back to read and write. */
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t len, unsigned flags) {
    if (tracked(out) != OUTSIDE) {
        errno = ENOSYS;
        return -1;
    }
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, len, flags);
}

static int do_truncate(int fd, off_t size) {
    if (tracked(fd) != A_FILE) return syscall(SYS_ftruncate, fd, size);
    struct stat st;
    pthread_mutex_lock(&lock);
    if (fstat(fd, &st) != 0) broken("fstat");
    uint64_t cut = size < st.st_size ? st.st_size - size : 0;
    remember(fd, size, cut, size, NULL, 0);
    int answer = syscall(SYS_ftruncate, fd, size), failed = errno;
    pthread_mutex_unlock(&lock);
    errno = failed;
    return answer;
}

int ftruncate(int fd, off_t size) { return do_truncate(fd, size); }
int ftruncate64(int fd, off64_t size) { return do_truncate(fd, size); }

static int do_fallocate(int fd, int mode, off_t at, off_t len) {
    if (tracked(fd) != A_FILE) return syscall(SYS_fallocate, fd, mode, at, len);
    struct stat st;
    size_t allowed = len;
    pthread_mutex_lock(&lock);
    int error = mode != 0 ? EOPNOTSUPP : refuse(table[fd].of_log, &allowed);
    if (!error && allowed < (size_t)len) error = ENOSPC;
    if (error) {
        pthread_mutex_unlock(&lock);
        errno = error;
        return -1;
    }
    if (fstat(fd, &st) != 0) broken("fstat");
    remember(fd, at, 0, at + len > st.st_size ? at + len : st.st_size, NULL, 0);
    int answer = syscall(SYS_fallocate, fd, mode, at, len), failed = errno;
    pthread_mutex_unlock(&lock);
    errno = failed;
    return answer;
}

int fallocate(int fd, int mode, off_t at, off_t len) { return do_fallocate(fd, mode, at, len); }
int fallocate64(int fd, int mode, off64_t at, off64_t len) { return do_fallocate(fd, mode, at, len); }
int posix_fallocate(int fd, off_t at, off_t len) { return do_fallocate(fd, 0, at, len) ? errno : 0; }
int posix_fallocate64(int fd, off64_t at, off64_t len) { return do_fallocate(fd, 0, at, len) ? errno : 0; }

/* --- syncing --- */

static int do_sync(int fd, long call) {
    int kind = tracked(fd);
    if (kind == OUTSIDE || !control) return syscall(call, fd);
    pthread_mutex_lock(&lock);
    control->syncs++;
    uint64_t through = sequence, ino = table[fd].ino;
    int of_log = table[fd].of_log;
    pthread_mutex_unlock(&lock);
    for (uint32_t waited = 0; waited < control->sync_wait_us;) {
        uint32_t left = control->sync_wait_us - waited, step = left < 1000 ? left : 1000;
        usleep(step);
        waited += step;
    }
    int error = in_scope(of_log) ? control->sync_error : 0;
    pthread_mutex_lock(&lock);
    if (kind == A_FOLDER && !error) {
        char link[64], path[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, path, sizeof path);
        if (len > 0) put(DIRSYNC, ino, through, 0, 0, 0, path, len, NULL, 0);
    } else {
        put(error ? SYNC_FAILED : SYNC, ino, through, 0, 0, 0, NULL, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return error ? -1 : 0;
}

int fsync(int fd) { return do_sync(fd, SYS_fsync); }
int fdatasync(int fd) { return do_sync(fd, SYS_fdatasync); }

/* --- names --- */

static int do_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char old[PATH_MAX], fresh[PATH_MAX];
    if (control) {
        whole(from_dir, from, old);
        whole(to_dir, to, fresh);
    }
    if (!control || !below_root(fresh))
        return syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    struct stat st;
    pthread_mutex_lock(&lock);
    uint64_t ino = exists(old, &st) ? st.st_ino : 0;
    int folder = ino && S_ISDIR(st.st_mode);
    uint64_t saved = !folder && save(fresh, sequence + 1) ? sequence + 1 : 0;
    put(RENAME, ino, saved, 0, 0, 0, old, strlen(old), fresh, strlen(fresh));
    int answer = syscall(SYS_renameat2, from_dir, from, to_dir, to, flags), failed = errno;
    if (answer != 0) broken("rename, which the journal has already");
    pthread_mutex_unlock(&lock);
    errno = failed;
    return answer;
}

int rename(const char *from, const char *to) { return do_rename(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return do_rename(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned f) { return do_rename(a, from, b, to, f); }

static int do_unlink(int dir, const char *path, int flags) {
    char name[PATH_MAX];
    struct stat st;
    if (control) whole(dir, path, name);
    if (!control || !below_root(name) || !exists(name, &st))
        return syscall(SYS_unlinkat, dir, path, flags);
    pthread_mutex_lock(&lock);
    if (flags & AT_REMOVEDIR) {
        put(RMDIR, st.st_ino, 0, 0, 0, 0, name, strlen(name), NULL, 0);
    } else {
        uint64_t saved = save(name, sequence + 1) ? sequence + 1 : 0;
        put(UNLINK, st.st_ino, saved, 0, 0, 0, name, strlen(name), NULL, 0);
    }
    int answer = syscall(SYS_unlinkat, dir, path, flags), failed = errno;
    pthread_mutex_unlock(&lock);
    errno = failed;
    return answer;
}

int unlink(const char *path) { return do_unlink(AT_FDCWD, path, 0); }
int unlinkat(int dir, const char *path, int flags) { return do_unlink(dir, path, flags); }
int rmdir(const char *path) { return do_unlink(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char *path, mode_t mode) {
    char name[PATH_MAX];
    int answer = syscall(SYS_mkdirat, AT_FDCWD, path, mode), failed = errno;
    if (control && answer == 0) {
        whole(AT_FDCWD, path, name);
        pthread_mutex_lock(&lock);
        if (below_root(name)) put(MKDIR, 0, 0, 0, 0, 0, name, strlen(name), NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    errno = failed;
    return answer;
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    char name[PATH_MAX];
    struct stat st;
    int answer = syscall(SYS_linkat, a, from, b, to, flags), failed = errno;
    if (control && answer == 0) {
        whole(b, to, name);
        pthread_mutex_lock(&lock);
        if (below_root(name) && exists(name, &st))
            put(CREATE, st.st_ino, 0, 0, 0, 0, name, strlen(name), NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    errno = failed;
    return answer;
}
