/* Reads epochs while its agent and its server are killed. The program has no handler for any signal, so that a
 * SIGPIPE would end it. A line of the standard input begins each epoch; the program tells when one is half over and
 * when it has ended, and how many reads failed meanwhile. */
#include "check.h"

int main(void) {
    DL_context *context = stored("dl://survive");
    char line[16];
    DL_bytes kept;
    OK(DL_get(context, "d09/f00009", &kept));
    puts("ready");
    fflush(stdout);
    for (unsigned turn = 0; fgets(line, sizeof line, stdin); turn++) {
        DL_order order = {.size = sizeof order, .epoch = turn};
        DL_epoch *epoch;
        OK(DL_shuffle(context, &order, &epoch));
        unsigned failed = 0, total = 0;
        for (;;) {
            DL_bytes bytes[20];
            uint32_t numbers[20];
            size_t read, length;
            char path[32];
            if (DL_next(epoch, 20, numbers, bytes, &read) != DL_OK) {
                /* The next call goes on with the same files. */
                CHECK(read == 0 && ++failed < 1000);
                continue;
            }
            if (read == 0) break;
            for (size_t at = 0; at < read; at++) {
                OK(DL_path(context, numbers[at], path, sizeof path, &length));
                CHECK(is_file(number_of(path), bytes[at].data, bytes[at].length));
            }
            DL_release(bytes, read);
            if ((total += (unsigned)read) == FILES / 2) {
                puts("half");
                fflush(stdout);
                CHECK(fgets(line, sizeof line, stdin));
            }
        }
        CHECK(total == FILES);
        DL_epoch_close(epoch);
        printf("%u failed\n", failed);
        fflush(stdout);
    }
    CHECK(is_file(9, kept.data, kept.length));
    OK(DL_close(context));
    CHECK(is_file(9, kept.data, kept.length));
    DL_release(&kept, 1);
    return 0;
}
