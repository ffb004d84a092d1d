/* Wrong arguments: each is refused, by its name. */
#include "check.h"

#define WRONG(call, name) CHECK((call) == DL_INVALID && strstr(DL_message(), name))

static void of_handles(DL_context *context) {
    char text[8];
    unsigned char buffer[8];
    size_t length;
    uint32_t number = 0;
    uint64_t files;
    DL_bytes bytes;
    DL_entry entry;
    DL_list *list;
    DL_epoch *epoch;
    const char *paths[] = {NULL};
    WRONG(DL_put(NULL, "a", "", 0), "context");
    WRONG(DL_put(context, NULL, "", 0), "path");
    WRONG(DL_put(context, "a", NULL, 1), "data");
    WRONG(DL_put(context, "/a", "", 0), "/a");
    WRONG(DL_put_file(context, "a", NULL), "file");
    WRONG(DL_flush(NULL, &files), "context");
    WRONG(DL_delete(context, paths, 1, &files), "paths");
    WRONG(DL_delete(context, NULL, 1, &files), "paths");
    WRONG(DL_get(context, "a", NULL), "bytes");
    WRONG(DL_get(context, NULL, &bytes), "path");
    WRONG(DL_get(NULL, "a", &bytes), "context");
    WRONG(DL_get_into(context, "a", NULL, 8, &length), "buffer");
    WRONG(DL_get_into(context, "a", buffer, 8, NULL), "length");
    WRONG(DL_get_range(context, "a", 0, NULL, 8, &length), "buffer");
    WRONG(DL_get_many(context, paths, 1, &bytes), "paths[i]");
    WRONG(DL_get_many(context, paths, 1, NULL), "bytes");
    WRONG(DL_read(context, NULL, 1, &bytes), "numbers");
    WRONG(DL_read_into(context, &number, 1, buffer, 8, NULL), "ends");
    WRONG(DL_read_into(context, &number, 1, NULL, 8, &length), "buffer");
    WRONG(DL_stat(context, "a", NULL), "entry");
    WRONG(DL_number(context, "a", NULL), "number");
    WRONG(DL_path(context, 0, NULL, 8, &length), "buffer");
    WRONG(DL_path(context, 0, text, 8, NULL), "length");
    WRONG(DL_count(context, NULL), "files");
    WRONG(DL_ls(context, NULL, 0, &list), "folder");
    WRONG(DL_ls(context, "", 2, &list), "flags");
    WRONG(DL_ls(context, "", 0, NULL), "list");
    WRONG(DL_ls_next(NULL, &entry), "list");
    WRONG(DL_save_meta(context, NULL), "file");
    WRONG(DL_load_meta(context, NULL), "file");
    WRONG(DL_shuffle(context, NULL, NULL), "epoch");
    WRONG(DL_shuffle(NULL, NULL, &epoch), "context");
    WRONG(DL_next(NULL, 1, NULL, &bytes, &length), "epoch");
    WRONG(DL_take(NULL, 1, &number, &length), "epoch");
    WRONG(DL_token(NULL, 0, text, 8, &length), "epoch");
    WRONG(DL_epoch_length(NULL, &files), "epoch");
    WRONG(DL_purge(context, 0, 8, NULL), "flags");
    WRONG(DL_umount(NULL), "directory");
    WRONG(DL_mount("c", NULL, NULL), "directory");
    WRONG(DL_datasets(NULL, NULL), "list");
    WRONG(DL_delete_dataset(NULL, NULL), "address");
    WRONG(DL_delete_dataset("dl://c/folder", NULL), "folder");
}

static void of_structures(DL_context *context) {
    DL_context *other;
    DL_epoch *epoch;
    DL_options options = {0};
    WRONG(DL_open("c", &options, &other), "options.size");
    options.size = sizeof options;
    options.flags = 1 << 20;
    WRONG(DL_open("c", &options, &other), "options.flags");
    options.flags = 0;
    options.task = "a name with spaces";
    WRONG(DL_open("c", &options, &other), "options.task");
    options = (DL_options){.size = sizeof options, .flags = DL_CREATE, .snapshot = "file"};
    WRONG(DL_open("c", &options, &other), "options.snapshot");
    WRONG(DL_open(NULL, NULL, &other), "address");
    WRONG(DL_open("c", NULL, NULL), "context");
    WRONG(DL_open("dl://c/folder", NULL, &other), "folder");
    WRONG(DL_open("no name!", NULL, &other), "no name!");
    CHECK(other == NULL);
    options = (DL_options){.size = sizeof options, .servers = "127.0.0.1:1", .timeout_ms = 2000};
    CHECK(DL_open("c", &options, &other) == DL_UNREACHABLE && strstr(DL_message(), "127.0.0.1:1"));

    /* A program of an older library, which knows fewer fields; and one of a newer library, which knows more. */
    options = (DL_options){.size = offsetof(DL_options, timeout_ms)};
    OK(DL_open("c", &options, &other));
    OK(DL_close(other));
    struct {
        DL_options options;
        uint64_t more;
    } newer = {.options = {.size = sizeof newer}};
    OK(DL_open("c", &newer.options, &other));
    OK(DL_close(other));
    newer.more = 1;
    WRONG(DL_open("c", &newer.options, &other), "newer");

    DL_order order = {0};
    WRONG(DL_shuffle(context, &order, &epoch), "order.size");
    order = (DL_order){.size = sizeof order, .flags = 4};
    WRONG(DL_shuffle(context, &order, &epoch), "order.flags");
    order = (DL_order){.size = sizeof order, .rank = 3, .world = 2};
    CHECK(DL_shuffle(context, &order, &epoch) == DL_INVALID);
    order = (DL_order){.size = sizeof order, .resume = "x"};
    WRONG(DL_shuffle(context, &order, &epoch), "order.resume");
}

int main(void) {
    DL_context *context = stored("c");
    of_structures(context);
    of_handles(context);
    OK(DL_close(context));
    OK(DL_close(NULL));
    DL_epoch_close(NULL);
    DL_ls_close(NULL);
    DL_release(NULL, 3);
    return 0;
}
