/* Reads an epoch of a dataset in shuffled order, and prints the mean length of its files:
 * epoch DATASET [EPOCH [TOKEN]]. On the way it prints a token, with which another run goes on from there. */
#include <diesel.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 64

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, DL_message());
    return 1;
}

int main(int argc, char **argv) {
    DL_order order = {.size = sizeof order, .seed = 1};
    DL_context *dataset;
    DL_epoch *epoch;
    if (argc < 2) return fputs("usage: epoch DATASET [EPOCH [TOKEN]]\n", stderr), 2;
    if (argc > 2) order.epoch = strtoull(argv[2], NULL, 10);
    if (argc > 3) order.resume = argv[3];
    /* The servers, the user and the job are those of the environment: DIESEL_SERVER, DIESEL_USER, DIESEL_TASK. */
    if (DL_open(argv[1], NULL, &dataset) != DL_OK) return fail("open");
    if (DL_shuffle(dataset, &order, &epoch) != DL_OK) return fail("shuffle");

    unsigned long long files = 0, bytes = 0, bad = 0;
    for (;;) {
        DL_bytes batch[BATCH];
        size_t read;
        DL_status status = DL_next(epoch, BATCH, NULL, batch, &read);
        if (status != DL_OK && status != DL_PARTLY) return fail("next");
        if (read == 0) break;
        for (size_t at = 0; at < read; at++) {
            /* batch[at].data is the memory that all processes of the job share: read it, or copy. */
            bad += batch[at].status != DL_OK;
            bytes += batch[at].length;
        }
        DL_release(batch, read);
        files += read;
        if (files == 2 * BATCH) {
            char token[4096];
            size_t length;
            if (DL_token(epoch, files, token, sizeof token, &length) != DL_OK) return fail("token");
            printf("token %s\n", token);
        }
    }
    printf("%llu files, %llu unreadable, mean length %.1f\n", files, bad, files ? (double)bytes / (double)files : 0);
    DL_epoch_close(epoch);
    return DL_close(dataset) == DL_OK ? 0 : fail("close");
}
