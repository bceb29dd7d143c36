/* Operations on files, with both spellings. */
#define _GNU_SOURCE
#define SOCKNOTIFY_WIN32_NAMES
#include <socknotify.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#define CHECK(is_so) CHECK_EQ(!(is_so), 0)

enum { KEY = 7, COUNT = 2000, CANCELLED = 300 };

struct request {
    OVERLAPPED overlapped;
    char memory[16];
};

static int temporary(void) {
    char name[] = "/tmp/socknotify-files-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0);
    CHECK(unlink(name) == 0);
    return file;
}

static struct request *request_at(uint64_t offset) {
    struct request *request = (struct request *)calloc(1, sizeof *request);
    CHECK(request != NULL);
    request->overlapped.Offset = (uint32_t)offset;
    request->overlapped.OffsetHigh = (uint32_t)(offset >> 32);
    return request;
}

/* Dequeue the packet of an operation. */
static struct request *next(sn_port port, uint32_t expected, uint32_t bytes) {
    uint32_t transferred = 99;
    uintptr_t key = 0;
    sn_overlapped *overlapped = NULL;
    CHECK(sn_dequeue_one(port, &transferred, &key, &overlapped, SN_INFINITE) == expected);
    CHECK(key == KEY && overlapped != NULL && transferred == bytes);
    CHECK(overlapped->Internal != SN_STATUS_PENDING);
    CHECK(sn_result(overlapped, &transferred) == expected && transferred == bytes);
    return (struct request *)overlapped;
}

static void the_sn_names(void) {
    sn_port port;
    int file = temporary();
    int pipe_ends[2];
    uint32_t found;
    struct request *request;
    CHECK(sn_create_port(0, &port) == SN_SUCCESS);

    request = request_at(3);
    memcpy(request->memory, "hello", 5);
    CHECK(sn_write(port, file, request->memory, 5, KEY, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_SUCCESS, 5) == request);
    memset(request, 0, sizeof *request);
    request->overlapped.Offset = 4;
    CHECK(sn_read(port, file, request->memory, 16, KEY, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_SUCCESS, 4) == request);
    CHECK(memcmp(request->memory, "ello", 5) == 0);
    request->overlapped.Offset = 8;
    CHECK(sn_read(port, file, request->memory, 16, KEY, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_HANDLE_EOF, 0) == request);
    CHECK(sn_cancel(port, &request->overlapped) == SN_NOT_FOUND);

    /* What is not begun has no packet. */
    CHECK(pipe(pipe_ends) == 0);
    CHECK(sn_read(port, pipe_ends[0], request->memory, 1, KEY, &request->overlapped) ==
          SN_INVALID_HANDLE);
    CHECK(sn_read(port, -1, request->memory, 1, KEY, &request->overlapped) == SN_INVALID_HANDLE);
    CHECK(sn_read(port, 12345, request->memory, 1, KEY, &request->overlapped) == SN_INVALID_HANDLE);
    CHECK(sn_read(port, file, NULL, 1, KEY, &request->overlapped) == SN_INVALID_PARAMETER);
    CHECK(sn_read(port, file, request->memory, 1, KEY, NULL) == SN_INVALID_PARAMETER);
    CHECK(sn_read(NULL, file, request->memory, 1, KEY, &request->overlapped) == SN_INVALID_HANDLE);
    CHECK(sn_result(NULL, &found) == SN_INVALID_PARAMETER);
    CHECK(sn_result(&request->overlapped, NULL) == SN_INVALID_PARAMETER);
    CHECK(sn_cancel(port, NULL) == SN_INVALID_PARAMETER);
    request->overlapped.OffsetHigh = UINT32_MAX;
    CHECK(sn_read(port, file, request->memory, 1, KEY, &request->overlapped) == SN_INVALID_PARAMETER);
    free(request);

    CHECK(sn_close_port(port) == SN_SUCCESS);
    CHECK(close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0 && close(file) == 0);
}

/* As in Rust: several parts, fsync, and the system's own errors. */
static void vectors_and_errors(void) {
    sn_port port;
    char left[3] = "", right[8] = "";
    struct iovec parts[2] = {{(void *)"ab", 2}, {(void *)"cdef", 4}};
    int file = temporary();
    struct request *request = request_at(0);
    int read_only = open("/dev/null", O_RDONLY);
    CHECK(sn_create_port(0, &port) == SN_SUCCESS);
    CHECK(sn_writev(port, file, parts, 2, KEY, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_SUCCESS, 6) == request);
    CHECK(sn_errno(&request->overlapped) == 0);
    for (int only_data = 0; only_data < 2; only_data += 1) {
        request->overlapped.OffsetHigh = UINT32_MAX;
        CHECK(sn_sync(port, file, only_data, KEY, &request->overlapped) == SN_SUCCESS);
        CHECK(next(port, SN_SUCCESS, 0) == request);
    }
    request->overlapped.OffsetHigh = 0;
    parts[0].iov_base = left;
    parts[1].iov_base = right;
    parts[1].iov_len = sizeof right;
    request->overlapped.Offset = 1;
    CHECK(sn_readv(port, file, parts, 2, KEY, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_SUCCESS, 5) == request);
    CHECK(memcmp(left, "bc", 2) == 0 && memcmp(right, "def", 4) == 0);
    request->overlapped.Offset = 6;
    CHECK(sn_readv(port, file, parts, 2, KEY, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_HANDLE_EOF, 0) == request);

    CHECK(sn_readv(port, file, NULL, 2, KEY, &request->overlapped) == SN_INVALID_PARAMETER);
    CHECK(sn_writev(port, file, NULL, 2, KEY, &request->overlapped) == SN_INVALID_PARAMETER);
    CHECK(sn_readv(port, file, parts, 2, KEY, NULL) == SN_INVALID_PARAMETER);
    CHECK(sn_sync(port, -1, 0, KEY, &request->overlapped) == SN_INVALID_HANDLE);
    CHECK(sn_sync(port, read_only, 0, KEY, &request->overlapped) == SN_INVALID_HANDLE);
    CHECK(sn_errno(NULL) == EINVAL);
    request->overlapped.Internal = SN_STATUS_PENDING;
    CHECK(sn_errno(&request->overlapped) == EINPROGRESS);
#ifdef __linux__
    /* Whose reads may never end. */
    int made_up = open("/proc/self/status", O_RDONLY);
    CHECK(sn_read(port, made_up, left, 1, KEY, &request->overlapped) == SN_NOT_SUPPORTED);
    CHECK(close(made_up) == 0);
#endif
    /* It was opened to write only. */
    char name[] = "/tmp/socknotify-errno-XXXXXX";
    CHECK(close(mkstemp(name)) == 0);
    int write_only = open(name, O_WRONLY);
    CHECK(unlink(name) == 0);
    request->overlapped.Offset = 0;
    CHECK(sn_read(port, write_only, left, 1, KEY, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_INVALID_HANDLE, 0) == request);
    CHECK(sn_errno(&request->overlapped) == EBADF);
    CHECK(close(write_only) == 0 && close(read_only) == 0 && close(file) == 0);
    CHECK(sn_close_port(port) == SN_SUCCESS);
    free(request);
}

static struct request *page(void) {
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    return (struct request *)page;
}

/*
 * Another thread may close the port, and free the block, between the moment in which a packet leaves the queue and the
 * return of the call that dequeues it. And one that cancels may come too late. So no call reads a block whose operation
 * is complete. The first of two packets brings the second one into the queue.
 */
static void a_block_is_not_read_when_its_operation_is_complete(void) {
    const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    struct request *requests[2] = {page(), page()};
    int file = temporary();
    int complete = 0;
    int round;
    sn_port port;
    CHECK(write(file, "hello", 5) == 5);
    CHECK(sn_create_port(1, &port) == SN_SUCCESS);
    for (round = 0; complete < 20; round++) {
        uint32_t offset = (uint32_t)round % 8;
        uint32_t error = offset < 5 ? SN_SUCCESS : SN_HANDLE_EOF;
        uint32_t bytes = offset < 5 ? 5 - offset : 0;
        uint32_t transferred = 99;
        uintptr_t key = 0;
        sn_overlapped *overlapped = NULL;
        struct request *other;
        int index;
        CHECK(round < 100000);
        for (index = 0; index < 2; index++) {
            struct request *request = requests[index];
            request->overlapped.Offset = offset;
            CHECK(sn_read(port, file, request->memory, 16, KEY, &request->overlapped) == SN_SUCCESS);
        }
        other = next(port, error, bytes) == requests[0] ? requests[1] : requests[0];
        if (__atomic_load_n(&other->overlapped.Internal, __ATOMIC_ACQUIRE) == SN_STATUS_PENDING) {
            CHECK(next(port, error, bytes) == other);
            continue;
        }
        complete++;
        CHECK(mprotect(other, size, PROT_NONE) == 0);
        CHECK(sn_dequeue_one(port, &transferred, &key, &overlapped, SN_INFINITE) == error);
        CHECK(overlapped == &other->overlapped && key == KEY && transferred == bytes);
        CHECK(sn_cancel(port, overlapped) == SN_NOT_FOUND);
        CHECK(mprotect(other, size, PROT_READ | PROT_WRITE) == 0);
    }
    for (round = 0; round < 2; round++) {
        CHECK(munmap(requests[round], size) == 0);
        CHECK(sn_cancel(port, &requests[round]->overlapped) == SN_NOT_FOUND);
    }
    CHECK(sn_close_port(port) == SN_SUCCESS);
    CHECK(close(file) == 0);
}

/* Every one that was begun has one packet, whether it was cancelled or not. */
static void cancelling(void) {
    static struct request requests[CANCELLED];
    static char seen[CANCELLED];
    sn_port port;
    int file = temporary();
    int index;
    CHECK(write(file, "0123456789abcdef", 16) == 16);
    CHECK(sn_create_port(0, &port) == SN_SUCCESS);
    for (index = 0; index < CANCELLED; index++) {
        struct request *request = &requests[index];
        uint32_t error;
        CHECK(sn_read(port, file, request->memory, 16, KEY, &request->overlapped) == SN_SUCCESS);
        error = sn_cancel(port, &requests[index / 2].overlapped);
        CHECK(error == SN_SUCCESS || error == SN_NOT_FOUND);
    }
    for (index = 0; index < CANCELLED; index++) {
        uint32_t transferred;
        uintptr_t key;
        sn_overlapped *overlapped;
        uint32_t error = sn_dequeue_one(port, &transferred, &key, &overlapped, SN_INFINITE);
        ptrdiff_t which = (struct request *)overlapped - requests;
        CHECK(key == KEY && which >= 0 && which < CANCELLED && seen[which]++ == 0);
        CHECK(error == SN_OPERATION_ABORTED || (error == SN_SUCCESS && transferred == 16));
    }
    CHECK(sn_close_port(port) == SN_SUCCESS);
    CHECK(close(file) == 0);
}

/* Many are under way, and the port is closed: their memory is the caller's again. */
static void closing(void) {
    static struct request requests[COUNT];
    sn_port port;
    int file = temporary();
    int index;
    CHECK(write(file, "0123456789abcdef", 16) == 16);
    CHECK(sn_create_port(0, &port) == SN_SUCCESS);
    for (index = 0; index < COUNT; index++) {
        struct request *request = &requests[index];
        CHECK(sn_read(port, file, request->memory, 16, KEY, &request->overlapped) == SN_SUCCESS);
    }
    CHECK(sn_close_port(port) == SN_SUCCESS);
    for (index = 0; index < COUNT; index++) {
        uint32_t bytes;
        uint32_t error = sn_result(&requests[index].overlapped, &bytes);
        CHECK(error == SN_OPERATION_ABORTED || (error == SN_SUCCESS && bytes == 16));
    }
    CHECK(close(file) == 0);
}

/* As a program for Windows does it. */
static void the_win32_names(void) {
    int descriptor = temporary();
    int other = temporary();
    HANDLE file = (HANDLE)(intptr_t)descriptor;
    HANDLE port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 0);
    struct request *request = request_at(1);
    OVERLAPPED *done = NULL;
    DWORD bytes = 99;
    ULONG_PTR key = 0;
    CHECK(port != NULL);

    /* It is not associated yet. */
    CHECK(!ReadFile(file, request->memory, 5, &bytes, &request->overlapped));
    CHECK(GetLastError() == ERROR_INVALID_PARAMETER && bytes == 0);
    CHECK(CreateIoCompletionPort(file, port, KEY, 0) == port);
    CHECK(CreateIoCompletionPort(file, file, KEY, 0) == NULL);
    CHECK(GetLastError() == ERROR_INVALID_HANDLE);

    memcpy(request->memory, "hello", 5);
    CHECK(!WriteFile(file, request->memory, 5, NULL, &request->overlapped));
    CHECK(GetLastError() == ERROR_IO_PENDING);
    CHECK(GetQueuedCompletionStatus(port, &bytes, &key, &done, INFINITE));
    CHECK(key == KEY && bytes == 5 && done == &request->overlapped);
    memset(request->memory, 0, sizeof request->memory);
    CHECK(!ReadFile(file, request->memory, 16, &bytes, &request->overlapped));
    CHECK(GetLastError() == ERROR_IO_PENDING);
    CHECK(GetQueuedCompletionStatus(port, &bytes, &key, &done, INFINITE));
    CHECK(key == KEY && bytes == 5 && memcmp(request->memory, "hello", 5) == 0);
    request->overlapped.Offset = 100;
    CHECK(!ReadFile(file, request->memory, 16, &bytes, &request->overlapped));
    CHECK(!GetQueuedCompletionStatus(port, &bytes, &key, &done, INFINITE));
    CHECK(GetLastError() == ERROR_HANDLE_EOF && done == &request->overlapped && bytes == 0);

    /* Another file has the number: the association was not its own. */
    CHECK(dup2(other, descriptor) == descriptor);
    CHECK(!ReadFile(file, request->memory, 5, &bytes, &request->overlapped));
    CHECK(GetLastError() == ERROR_INVALID_PARAMETER);

    /* With a port of its own. */
    CHECK(CloseHandle(port));
    port = CreateIoCompletionPort(file, NULL, KEY, 1);
    CHECK(port != NULL);
    request->overlapped.Offset = 0;
    CHECK(!WriteFile(file, "abc", 3, NULL, &request->overlapped));
    CHECK(GetLastError() == ERROR_IO_PENDING);
    CHECK(GetQueuedCompletionStatus(port, &bytes, &key, &done, INFINITE));
    CHECK(key == KEY && bytes == 3);
    CHECK(CloseHandle(port));
    CHECK(!ReadFile(file, request->memory, 5, &bytes, &request->overlapped));
    CHECK(GetLastError() == ERROR_INVALID_HANDLE);
    free(request);
    CHECK(close(descriptor) == 0 && close(other) == 0);
}

/* PORTING.md: by the offset that appends on Windows nothing is written, but by O_APPEND. */
static void appending(void) {
    char name[] = "/tmp/socknotify-append-XXXXXX", found[16] = "";
    int descriptor = mkstemp(name);
    HANDLE file = (HANDLE)(intptr_t)descriptor;
    HANDLE port = CreateIoCompletionPort(file, NULL, KEY, 1);
    struct request *request = request_at(UINT64_MAX);
    CHECK(port != NULL && write(descriptor, "abc", 3) == 3);
    CHECK(!WriteFile(file, "def", 3, NULL, &request->overlapped));
    CHECK(GetLastError() == ERROR_INVALID_PARAMETER);
    CHECK(pread(descriptor, found, sizeof found, 0) == 3);
#ifdef __linux__
    CHECK(fcntl(descriptor, F_SETFL, O_APPEND) == 0);
    memset(request, 0, sizeof *request);
    CHECK(!WriteFile(file, "def", 3, NULL, &request->overlapped));
    CHECK(GetLastError() == ERROR_IO_PENDING);
    CHECK(next((sn_port)port, SN_SUCCESS, 3) == request);
    CHECK(pread(descriptor, found, sizeof found, 0) == 6 && memcmp(found, "abcdef", 6) == 0);
#endif
    free(request);
    CHECK(CloseHandle(port) && unlink(name) == 0 && close(descriptor) == 0);
}

/* With the descriptor and, if the file system gives it away again, the inode of one that was closed and deleted. */
static void an_association_ends_with_its_file(void) {
    sn_port port;
    int round;
    int same_inode = 0;
    CHECK(sn_create_port(1, &port) == SN_SUCCESS);
    for (round = 0; round < 20; round++) {
        struct request *request = request_at(0);
        int file = temporary();
        int other;
        struct stat before, after;
        CHECK(fstat(file, &before) == 0);
        CHECK(sn_associate(port, file, KEY) == SN_SUCCESS);
        CHECK(sn_write_associated(file, "abc", 3, &request->overlapped) == SN_SUCCESS);
        CHECK(next(port, SN_SUCCESS, 3) == request);
        CHECK(close(file) == 0);
        other = temporary();
        CHECK(other == file && fstat(other, &after) == 0);
        same_inode += before.st_dev == after.st_dev && before.st_ino == after.st_ino;
        CHECK(sn_read_associated(other, request->memory, 16, &request->overlapped) ==
              SN_INVALID_PARAMETER);
        CHECK(sn_write_associated(other, "abc", 3, &request->overlapped) == SN_INVALID_PARAMETER);
        /* Associated itself, it has a key of its own. */
        CHECK(sn_associate(port, other, KEY) == SN_SUCCESS);
        CHECK(sn_write_associated(other, "ab", 2, &request->overlapped) == SN_SUCCESS);
        CHECK(next(port, SN_SUCCESS, 2) == request);
        CHECK(close(other) == 0);
        free(request);
    }
    if (same_inode == 0) {
        fprintf(stderr, "no inode was used again\n");
    }
    CHECK(sn_close_port(port) == SN_SUCCESS);
}

static void an_association_can_be_ended(void) {
    sn_port port;
    struct request *request = request_at(0);
    int file = temporary();
    CHECK(sn_create_port(1, &port) == SN_SUCCESS);
    CHECK(sn_dissociate(file) == SN_NOT_FOUND);
    CHECK(sn_dissociate(-1) == SN_NOT_FOUND);
    CHECK(sn_associate(port, file, KEY) == SN_SUCCESS);
    /* What was begun goes on. */
    CHECK(sn_write_associated(file, "abc", 3, &request->overlapped) == SN_SUCCESS);
    CHECK(sn_dissociate(file) == SN_SUCCESS);
    CHECK(sn_dissociate(file) == SN_NOT_FOUND);
    CHECK(next(port, SN_SUCCESS, 3) == request);
    CHECK(sn_read_associated(file, request->memory, 16, &request->overlapped) == SN_INVALID_PARAMETER);
    CHECK(sn_associate(port, file, KEY) == SN_SUCCESS);
    CHECK(sn_read_associated(file, request->memory, 16, &request->overlapped) == SN_SUCCESS);
    CHECK(next(port, SN_SUCCESS, 3) == request);
    /* Of a descriptor that is closed, too. */
    CHECK(close(file) == 0);
    CHECK(sn_dissociate(file) == SN_SUCCESS);
    CHECK(sn_close_port(port) == SN_SUCCESS);
    free(request);
}

/* Which is read as a file, and has an end. */
static void a_block_device_is_a_file(void) {
    DIR *devices = opendir("/dev");
    struct dirent *device;
    sn_port port;
    int count = 0;
    CHECK(devices != NULL && sn_create_port(1, &port) == SN_SUCCESS);
    while (count == 0 && (device = readdir(devices)) != NULL) {
        struct stat status;
        int file;
        /* To open another one may do something. */
        if (fstatat(dirfd(devices), device->d_name, &status, 0) != 0 || !S_ISBLK(status.st_mode)) {
            continue;
        }
        file = openat(dirfd(devices), device->d_name, O_RDONLY | O_NONBLOCK);
        if (file >= 0) {
            CHECK(sn_associate(port, file, KEY) == SN_SUCCESS);
            CHECK(sn_dissociate(file) == SN_SUCCESS);
            CHECK(close(file) == 0);
            count++;
        }
    }
    if (count == 0) {
        fprintf(stderr, "skipped: no block device can be opened\n");
    }
    CHECK(sn_close_port(port) == SN_SUCCESS && closedir(devices) == 0);
}

int main(void) {
    a_block_device_is_a_file();
    an_association_can_be_ended();
    an_association_ends_with_its_file();
    the_sn_names();
    vectors_and_errors();
    a_block_is_not_read_when_its_operation_is_complete();
    cancelling();
    closing();
    the_win32_names();
    appending();
    return 0;
}
