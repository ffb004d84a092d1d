/* One handle, one epoch and many threads; each thread has messages of its own. */
#include "check.h"
#include <pthread.h>

#define THREADS 8

static DL_context *context;
static DL_epoch *epoch;
static char seen[FILES];

static void *work(void *argument) {
    size_t me = (size_t)argument, length;
    char missing[32], path[32];
    sprintf(missing, "none/%zu", me);
    unsigned char buffer[LONGEST];
    for (unsigned turn = 0; turn < 400; turn++) {
        unsigned number = (turn * 7 + (unsigned)me * 131) % FILES;
        path_of(number, path);
        OK(DL_get_into(context, path, buffer, sizeof buffer, &length));
        CHECK(is_file(number, buffer, length));
        if (turn % 50 == 0) {
            CHECK(DL_get_into(context, missing, buffer, sizeof buffer, &length) == DL_NOT_FOUND);
            CHECK(strstr(DL_message(), missing));
        }
    }
    uint32_t numbers[16];
    DL_bytes bytes[16];
    for (size_t read = 1; read;) {
        OK(DL_next(epoch, 16, numbers, bytes, &read));
        for (size_t at = 0; at < read; at++) {
            OK(DL_path(context, numbers[at], path, sizeof path, &length));
            CHECK(is_file(number_of(path), bytes[at].data, bytes[at].length));
            CHECK(__atomic_fetch_add(seen + numbers[at], 1, __ATOMIC_RELAXED) == 0);
        }
        DL_release(bytes, read);
    }
    return NULL;
}

int main(void) {
    context = stored("dl://threads");
    OK(DL_shuffle(context, NULL, &epoch));
    pthread_t threads[THREADS];
    for (size_t one = 0; one < THREADS; one++) CHECK(pthread_create(threads + one, NULL, work, (void *)one) == 0);
    for (size_t one = 0; one < THREADS; one++) CHECK(pthread_join(threads[one], NULL) == 0);
    for (unsigned number = 0; number < FILES; number++) CHECK(seen[number] == 1);
    DL_epoch_close(epoch);
    OK(DL_close(context));
    return 0;
}
