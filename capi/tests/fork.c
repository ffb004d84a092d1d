/* A handle, its bytes and its epoch in a forked child; and bytes after the end of their handle. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    DL_context *context = stored("dl://fork");
    DL_bytes bytes[3];
    DL_epoch *epoch;
    uint32_t numbers[10], after[10];
    size_t read;
    const char *paths[] = {"d01/f00001", "d02/f00002", "d03/f00003"};
    OK(DL_get_many(context, paths, 3, bytes));
    OK(DL_shuffle(context, NULL, &epoch));
    OK(DL_take(epoch, 10, numbers, &read));
    pid_t child = fork();
    if (child == 0) {
        unsigned char buffer[LONGEST];
        size_t length;
        for (unsigned one = 0; one < 3; one++) CHECK(is_file(one + 1, bytes[one].data, bytes[one].length));
        OK(DL_get_into(context, "d05/f00005", buffer, sizeof buffer, &length));
        CHECK(is_file(5, buffer, length));
        DL_bytes more[10];
        OK(DL_next(epoch, 10, after, more, &read));
        CHECK(read == 10);
        for (unsigned one = 0; one < 10; one++) {
            for (unsigned other = 0; other < 10; other++) CHECK(after[one] != numbers[other]);
        }
        DL_release(more, read);
        DL_release(bytes, 3);
        DL_epoch_close(epoch);
        OK(DL_close(context));
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    DL_epoch_close(epoch);
    OK(DL_close(context));
    for (unsigned one = 0; one < 3; one++) CHECK(is_file(one + 1, bytes[one].data, bytes[one].length));
    DL_release(bytes, 3);
    return 0;
}
