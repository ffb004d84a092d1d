/* Reads files of 4 KiB by the library for C: read DATASET. For each seed of a line on the standard input it prints
 * nanoseconds of a file by DL_get_into, memcpy and DL_read_into. */
#define _GNU_SOURCE
#include <diesel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LENGTH 4096
#define BATCH 256
#define ROUNDS 60000

static uint64_t state;

static uint64_t draw(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void check(DL_status status) {
    if (status != DL_OK) {
        fprintf(stderr, "read: %s\n", DL_message());
        exit(1);
    }
}

int main(int argc, char **argv) {
    DL_context *dataset;
    uint64_t files;
    size_t length, ends[BATCH];
    static unsigned char buffer[BATCH * LENGTH];
    if (argc != 2) return 2;
    check(DL_open(argv[1], NULL, &dataset));
    check(DL_count(dataset, &files));

    char(*paths)[64] = malloc(files * sizeof *paths);
    unsigned char *copy = malloc(files * LENGTH);
    memset(copy, 1, files * LENGTH);
    for (uint64_t file = 0; file < files; file++) {
        /* The first read of a page of the shared memory maps it. */
        uint32_t number = (uint32_t)file;
        check(DL_path(dataset, number, paths[file], 64, &length));
        check(DL_read_into(dataset, &number, 1, buffer, sizeof buffer, ends));
    }

    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        state = strtoull(line, NULL, 10);
        double begun = now();
        for (int round = 0; round < ROUNDS; round++) {
            check(DL_get_into(dataset, paths[draw(files)], buffer, LENGTH, &length));
            if (length != LENGTH) return 1;
        }
        double get = (now() - begun) / ROUNDS;

        begun = now();
        for (int round = 0; round < ROUNDS; round++) {
            memcpy(buffer, copy + draw(files) * LENGTH, LENGTH);
            __asm__ volatile("" : : "r"(buffer) : "memory");
        }
        double plain = (now() - begun) / ROUNDS;

        begun = now();
        for (int round = 0; round < ROUNDS / BATCH; round++) {
            uint32_t numbers[BATCH];
            for (int at = 0; at < BATCH; at++) numbers[at] = (uint32_t)draw(files);
            check(DL_read_into(dataset, numbers, BATCH, buffer, sizeof buffer, ends));
        }
        double batch = (now() - begun) / (ROUNDS / BATCH * BATCH);
        printf("%f %f %f\n", get, plain, batch);
        fflush(stdout);
    }
    check(DL_close(dataset));
    return 0;
}
