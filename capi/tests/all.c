/* Each function once, with its results compared. */
#include "check.h"
#include <sys/stat.h>
#include <unistd.h>

static void reads(DL_context *context) {
    unsigned char buffer[LONGEST];
    size_t length;
    DL_bytes bytes[FILES];
    OK(DL_get(context, "d07/f00007", bytes));
    CHECK(is_file(7, bytes[0].data, bytes[0].length) && bytes[0].status == DL_OK);
    DL_release(bytes, 1);
    CHECK(bytes[0].owner == NULL && bytes[0].data == NULL);
    DL_release(bytes, 1);
    CHECK(DL_get(context, "d07/none", bytes) == DL_NOT_FOUND && bytes[0].status == DL_NOT_FOUND);
    CHECK(strstr(DL_message(), "d07/none"));
    DL_release(bytes, 1);

    OK(DL_get_into(context, "d07/f00007", buffer, sizeof buffer, &length));
    CHECK(is_file(7, buffer, length));
    CHECK(DL_get_into(context, "d07/f00007", buffer, 10, &length) == DL_TOO_SHORT);
    CHECK(length == length_of(7));
    CHECK(DL_get_into(context, "d07/none", buffer, sizeof buffer, &length) == DL_NOT_FOUND);
    OK(DL_get_range(context, "d07/f00107", 100, buffer, 50, &length));
    unsigned char whole[LONGEST];
    fill(107, whole);
    CHECK(length == 50 && memcmp(buffer, whole + 100, 50) == 0);
    OK(DL_get_range(context, "d07/f00107", length_of(107) - 5, buffer, 50, &length));
    CHECK(length == 5);
    OK(DL_get_range(context, "d07/f00107", 1 << 20, buffer, 50, &length));
    CHECK(length == 0);

    const char *paths[] = {"d01/f00001", "d01/none", "/wrong", "d02/f00002", "d00/f00000"};
    CHECK(DL_get_many(context, paths, 5, bytes) == DL_PARTLY && strstr(DL_message(), "none"));
    CHECK(bytes[1].status == DL_NOT_FOUND && bytes[1].data == NULL && bytes[2].status == DL_INVALID);
    CHECK(is_file(1, bytes[0].data, bytes[0].length) && is_file(2, bytes[3].data, bytes[3].length));
    CHECK(bytes[4].status == DL_OK && bytes[4].length == 0);
    DL_release(bytes, 5);

    uint32_t numbers[FILES];
    size_t ends[FILES];
    static unsigned char all[FILES * LONGEST];
    for (unsigned at = 0; at < FILES; at++) {
        char path[32];
        path_of(at, path);
        OK(DL_number(context, path, numbers + at));
    }
    CHECK(DL_number(context, "none", numbers) == DL_NOT_FOUND);
    path_of(0, (char *)buffer);
    OK(DL_number(context, (char *)buffer, numbers));
    OK(DL_read(context, numbers, FILES, bytes));
    for (unsigned at = 0; at < FILES; at++) CHECK(is_file(at, bytes[at].data, bytes[at].length));
    DL_release(bytes, FILES);
    uint32_t wrong[] = {numbers[3], FILES + 5};
    CHECK(DL_read(context, wrong, 2, bytes) == DL_PARTLY && bytes[1].status != DL_OK);
    CHECK(is_file(3, bytes[0].data, bytes[0].length));
    DL_release(bytes, 2);
    OK(DL_read_into(context, numbers, FILES, all, sizeof all, ends));
    for (unsigned at = 0; at < FILES; at++) {
        size_t from = at ? ends[at - 1] : 0;
        CHECK(is_file(at, all + from, ends[at] - from));
    }
    size_t needed = ends[FILES - 1];
    CHECK(DL_read_into(context, numbers, FILES, all, needed - 1, ends) == DL_TOO_SHORT);
    CHECK(ends[FILES - 1] == needed);
    OK(DL_read_into(context, NULL, 0, NULL, 0, NULL));
    OK(DL_read(context, NULL, 0, NULL));
}

static void describes(DL_context *context, const char *folder) {
    DL_entry entry;
    uint64_t files;
    OK(DL_stat(context, "d07/f00107", &entry));
    CHECK(entry.size == length_of(107) && !entry.is_folder && entry.number < FILES && entry.mode == 0644);
    CHECK(entry.uploaded_us > 1600000000000000u && entry.mtime_ns > 1600000000000000000 && entry.crc32c);
    OK(DL_stat(context, "d07", &entry));
    CHECK(entry.is_folder && entry.number == DL_NO_NUMBER);
    CHECK(DL_stat(context, "d99", &entry) == DL_NOT_FOUND && strstr(DL_message(), "d99"));
    OK(DL_count(context, &files));
    CHECK(files == FILES);

    DL_list *list;
    unsigned found = 0;
    OK(DL_ls(context, "", 0, &list));
    for (; DL_ls_next(list, &entry) == DL_OK; found++) CHECK(entry.is_folder && strlen(entry.path) == 3);
    CHECK(found == 20 && DL_ls_next(list, &entry) == DL_END);
    DL_ls_close(list);
    OK(DL_ls(context, "d03/", DL_RECURSIVE, &list));
    for (found = 0; DL_ls_next(list, &entry) == DL_OK; found++) {
        CHECK(entry.size == length_of(number_of(entry.path)) && strncmp(entry.path, "d03/f", 5) == 0);
    }
    CHECK(found == FILES / 20);
    DL_ls_close(list);
    CHECK(DL_ls(context, "nowhere", 0, &list) == DL_NOT_FOUND && list == NULL);
    DL_ls_close(list);

    char path[32], file[4096];
    size_t length;
    OK(DL_stat(context, "d07/f00107", &entry));
    OK(DL_path(context, entry.number, path, sizeof path, &length));
    CHECK(strcmp(path, "d07/f00107") == 0 && length == 10);
    CHECK(DL_path(context, entry.number, path, 10, &length) == DL_TOO_SHORT && length == 11);
    CHECK(DL_path(context, FILES, path, sizeof path, &length) != DL_OK);
    snprintf(file, sizeof file, "%s/snapshot", folder);
    OK(DL_save_meta(context, file));
    OK(DL_load_meta(context, file));
    DL_options options = {.size = sizeof options, .snapshot = file};
    DL_context *second;
    OK(DL_open("c", &options, &second));
    OK(DL_count(second, &files));
    CHECK(files == FILES);
    OK(DL_close(second));
}

static void epochs(DL_context *context) {
    DL_epoch *epoch;
    DL_bytes bytes[64];
    uint32_t numbers[64];
    uint64_t files;
    size_t read, length;
    char seen[FILES] = {0}, token[4096], path[32];
    OK(DL_shuffle(context, NULL, &epoch));
    OK(DL_epoch_length(epoch, &files));
    CHECK(files == FILES);
    for (unsigned total = 0;; total += read) {
        OK(DL_next(epoch, 64, numbers, bytes, &read));
        if (read == 0) {
            CHECK(total == FILES);
            break;
        }
        for (size_t at = 0; at < read; at++) {
            OK(DL_path(context, numbers[at], path, sizeof path, &length));
            unsigned number = number_of(path);
            CHECK(is_file(number, bytes[at].data, bytes[at].length) && !seen[number]);
            seen[number] = 1;
        }
        DL_release(bytes, read);
    }
    DL_epoch_close(epoch);

    /* Two ranks, one after the other; the first goes on from a token. */
    memset(seen, 0, sizeof seen);
    DL_order order = {.size = sizeof order, .seed = 5, .epoch = 2, .world = 2};
    for (unsigned rank = 0; rank < 2; rank++) {
        order.rank = rank;
        OK(DL_shuffle(context, &order, &epoch));
        OK(DL_take(epoch, 50, numbers, &read));
        CHECK(read == 50);
        for (size_t at = 0; at < read; at++) seen[numbers[at]]++;
        if (rank == 1) OK(DL_token(epoch, 50, token, sizeof token, &length));
        DL_epoch_close(epoch);
    }
    CHECK(length == strlen(token));
    order = (DL_order){.size = sizeof order, .resume = token};
    OK(DL_shuffle(context, &order, &epoch));
    OK(DL_epoch_length(epoch, &files));
    CHECK(files == FILES - 100);
    CHECK(DL_token(epoch, 0, token, 4, &length) == DL_TOO_SHORT && length > 4);
    do {
        OK(DL_take(epoch, 64, numbers, &read));
        for (size_t at = 0; at < read; at++) seen[numbers[at]]++;
    } while (read);
    for (unsigned number = 0; number < FILES; number++) CHECK(seen[number] == 1);
    DL_epoch_close(epoch);
    order.resume = "nonsense";
    CHECK(DL_shuffle(context, &order, &epoch) == DL_INVALID && epoch == NULL);
    DL_epoch_close(epoch);
}

static void changes(const char *folder) {
    char file[4096];
    DL_options options = {.size = sizeof options, .flags = DL_CREATE, .timeout_ms = 30000};
    DL_context *context;
    uint64_t count;
    OK(DL_open("dl://second", &options, &context));
    snprintf(file, sizeof file, "%s/local", folder);
    FILE *local = fopen(file, "w");
    CHECK(local && fputs("local bytes", local) >= 0 && fclose(local) == 0);
    OK(DL_put_file(context, "from/disk", file));
    OK(DL_put(context, "empty", NULL, 0));
    CHECK(DL_put_file(context, "x", "/no/such/file") == DL_LOCAL && strstr(DL_message(), "/no/such/file"));
    OK(DL_flush(context, NULL));
    DL_bytes bytes;
    OK(DL_get(context, "from/disk", &bytes));
    CHECK(bytes.length == 11 && memcmp(bytes.data, "local bytes", 11) == 0);
    DL_release(&bytes, 1);
    OK(DL_count(context, &count));
    CHECK(count == 2);
    const char *paths[] = {"empty", "never"};
    OK(DL_delete(context, paths, 2, &count));
    CHECK(count == 1);
    DL_purged purged;
    OK(DL_purge(context, 0, DL_DRY_RUN, &purged));
    CHECK(purged.removed == 0);
    OK(DL_purge(context, 0, 0, NULL));
    OK(DL_put(context, "late", "x", 1));
    OK(DL_close(context));

    DL_list *list;
    DL_entry entry;
    unsigned found = 0;
    OK(DL_datasets(NULL, &list));
    while (DL_ls_next(list, &entry) == DL_OK) found += !strcmp(entry.path, "second") || !strcmp(entry.path, "c");
    CHECK(found == 2);
    DL_ls_close(list);
    OK(DL_connect(NULL, NULL, "second", NULL, &context));
    OK(DL_count(context, &count));
    CHECK(count == 2);
    OK(DL_close(context));
    OK(DL_delete_dataset("dl://second", NULL));
    /* The job goes on with its version; others find nothing. */
    options = (DL_options){.size = sizeof options, .flags = DL_NO_TASK};
    CHECK(DL_open("dl://second", &options, &context) == DL_NOT_FOUND && context == NULL);
}

/* argv: a folder for files. */
int main(int argc, char **argv) {
    CHECK(argc == 2);
    DL_context *context = stored("dl://c");
    reads(context);
    describes(context, argv[1]);
    epochs(context);
    OK(DL_close(context));
    changes(argv[1]);
    CHECK(strcmp(DL_name(DL_TOO_SHORT), "DL_TOO_SHORT") == 0 && strcmp(DL_name(999), "unknown") == 0);
    CHECK(DL_version()[0] == '0');
    return 0;
}
