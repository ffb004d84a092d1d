/* Puts local files into a dataset: put DATASET FILE... */
#include <diesel.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    DL_options options = {.size = sizeof options, .flags = DL_CREATE};
    DL_context *dataset;
    uint64_t files;
    if (argc < 3) return fputs("usage: put DATASET FILE...\n", stderr), 2;
    DL_status status = DL_open(argv[1], &options, &dataset);
    for (int at = 2; status == DL_OK && at < argc; at++) {
        const char *slash = strrchr(argv[at], '/');
        status = DL_put_file(dataset, slash ? slash + 1 : argv[at], argv[at]);
    }
    if (status == DL_OK) status = DL_flush(dataset, &files); /* now they are durable */
    if (status != DL_OK) return fprintf(stderr, "put: %s\n", DL_message()), 1;
    printf("%llu files\n", (unsigned long long)files);
    return DL_close(dataset) == DL_OK ? 0 : 1;
}
