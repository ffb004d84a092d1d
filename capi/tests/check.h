/* What the programs that check the library share: a check that ends the program, and files whose bytes follow from
 * their number. */
#define _GNU_SOURCE
#include <diesel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(is_so)                                                                                   \
    do {                                                                                               \
        if (!(is_so)) {                                                                                \
            fprintf(stderr, "%s:%d: not so: %s; %s\n", __FILE__, __LINE__, #is_so, DL_message());      \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)
#define OK(call) CHECK((call) == DL_OK)

#define FILES 2000
#define LONGEST 6000

static inline size_t length_of(unsigned number) { return number * 37 % LONGEST; }

static inline void path_of(unsigned number, char *path) { sprintf(path, "d%02u/f%05u", number % 20, number); }

static inline unsigned number_of(const char *path) { return (unsigned)strtoul(strrchr(path, 'f') + 1, NULL, 10); }

static inline void fill(unsigned number, unsigned char *to) {
    for (size_t at = 0; at < length_of(number); at++) to[at] = (unsigned char)(number * 31 + at * 7);
}

static inline int is_file(unsigned number, const void *data, size_t length) {
    unsigned char bytes[LONGEST];
    fill(number, bytes);
    return length == length_of(number) && memcmp(bytes, data, length) == 0;
}

/* The dataset with all files, opened to be read. */
static inline DL_context *stored(const char *address) {
    unsigned char bytes[LONGEST];
    char path[32];
    DL_context *context;
    DL_options options = {.size = sizeof options, .flags = DL_CREATE};
    OK(DL_open(address, &options, &context));
    for (unsigned number = 0; number < FILES; number++) {
        path_of(number, path);
        fill(number, bytes);
        OK(DL_put(context, path, bytes, length_of(number)));
    }
    uint64_t files;
    OK(DL_flush(context, &files));
    CHECK(files == FILES);
    OK(DL_close(context));
    OK(DL_open(address, NULL, &context));
    return context;
}
