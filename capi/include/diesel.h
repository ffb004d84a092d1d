/* libdiesel: datasets of millions of small files, for programs in C. Written from the crate dl-capi.
 *
 * Functions give DL_OK (0), or another status; DL_message() tells the reason. Paths are bytes with NUL
 * at their end. Any thread may call any function with any handle; a handle works on after fork. */

#ifndef DIESEL_H
#define DIESEL_H

#include <stddef.h>
#include <stdint.h>

// Creates a missing dataset. The handle reads from the servers.
#define DL_CREATE 1

// Reads from the servers, without the cache of the node.
#define DL_NO_TASK 2

// Lets the key travel in plain text to other machines.
#define DL_PLAIN_TEXT_KEY 4

// Lists all files below the folder.
#define DL_RECURSIVE 1

// The number of a file without a number.
#define DL_NO_NUMBER UINT32_MAX

// Reads a few files twice, so that no file is left out when the ranks do not divide the files.
#define DL_PAD 1

// Counts, and removes nothing.
#define DL_DRY_RUN 1

// Removes old versions that jobs still lease.
#define DL_FORCE 2

// The result of a call: 0 for success. DL_message() tells the reason of any other.
typedef enum DL_status {
    // Success.
    DL_OK = 0,
    // No such object.
    DL_NOT_FOUND = 1,
    // The request makes no sense; change the request.
    DL_INVALID = 2,
    // Something else stands in the way; look first.
    DL_CONFLICT = 3,
    // The server's metadata is not whole: run `dlcmd recover`.
    DL_NEEDS_RECOVERY = 4,
    // Out of space or quota: stop writing. Reads go on.
    DL_FULL = 5,
    // Stored bytes differ from the written bytes.
    DL_CORRUPT = 6,
    // Not allowed: use another user, key or role, or set the clocks.
    DL_DENIED = 7,
    // The servers are busy or down; try again later.
    DL_UNAVAILABLE = 8,
    // No server answered in time; try again later.
    DL_TIMED_OUT = 9,
    // Given up by a stopping server.
    DL_CANCELLED = 10,
    // A fault of the software.
    DL_INTERNAL = 11,
    // No server could be reached; check the addresses and the network.
    DL_UNREACHABLE = 12,
    // A local file could not be read or written.
    DL_LOCAL = 13,
    // The buffer is too short; the needed length was stored.
    DL_TOO_SHORT = 14,
    // Some files of the call failed, each with a status of its own.
    DL_PARTLY = 15,
    // The end of a list.
    DL_END = 16,
} DL_status;

// A handle of a dataset, for any number of threads.
typedef struct DL_context DL_context;

// An epoch, for any number of threads: each file goes to one of them.
typedef struct DL_epoch DL_epoch;

// A list of entries, for one thread at a time.
typedef struct DL_list DL_list;

// The owner of lent bytes.
typedef struct DL_owner DL_owner;

// A function for messages: level (1 error, 2 warning, 3 information), text, and the argument of
// DL_set_log.
typedef void (*DL_log)(int level, const char *text, void *argument);

// Options of a connection. Set all to 0, then `size` to sizeof(DL_options). NULL and 0 stand for the
// variable of the environment, else for the default.
typedef struct DL_options {
    // sizeof(DL_options).
    size_t size;
    // Addresses, HOST:PORT or https://HOST:PORT, separated by commas: DIESEL_SERVER, else
    // 127.0.0.1:7420.
    const char *servers;
    // The user: DIESEL_USER.
    const char *user;
    // The key of the user: DIESEL_KEY.
    const char *key;
    // The file with the key.
    const char *key_file;
    // The file with the trusted certificates (PEM): DIESEL_CA, else those of the machine.
    const char *ca;
    // The file with the certificate of the client (PEM): DIESEL_CLIENT_CERT.
    const char *client_cert;
    // The file with its private key (PEM): DIESEL_CLIENT_KEY.
    const char *client_key;
    // A snapshot file, of DL_save_meta or `dlcmd snapshot save`, to read its version.
    const char *snapshot;
    // The training job, whose processes share the cache of the node: DIESEL_TASK, else the variables
    // of SLURM, torchrun or PMIx, else the session of the terminal.
    const char *task;
    // Time for a request in milliseconds: 60,000.
    uint32_t timeout_ms;
    // DL_CREATE, DL_NO_TASK, DL_PLAIN_TEXT_KEY.
    uint32_t flags;
} DL_options;

// The bytes of a file, lent until DL_release. Never write to them. Where status is not DL_OK, there
// are no bytes.
typedef struct DL_bytes {
    // The first byte.
    const uint8_t *data;
    // The number of bytes.
    size_t length;
    // The owner of the bytes; NULL without bytes.
    struct DL_owner *owner;
    // The result for this file.
    enum DL_status status;
} DL_bytes;

// A file or folder.
typedef struct DL_entry {
    // The path in the dataset, with NUL at its end.
    const char *path;
    // Bytes of a file.
    uint64_t size;
    // Time of its last change, as put, in nanoseconds since 1970.
    int64_t mtime_ns;
    // Time of its upload, in microseconds since 1970.
    uint64_t uploaded_us;
    // Permission bits.
    uint32_t mode;
    // CRC-32C of its bytes.
    uint32_t crc32c;
    // Its number in the snapshot of the handle, from DL_stat; else DL_NO_NUMBER.
    uint32_t number;
    // 1 for a folder, whose other fields are 0.
    uint32_t is_folder;
} DL_entry;

// The order of an epoch. Set all to 0, then `size` to sizeof(DL_order). 0 stands for the default.
typedef struct DL_order {
    // sizeof(DL_order).
    size_t size;
    // The number of the training.
    uint64_t seed;
    // The number of the epoch, from 0; each has another order.
    uint64_t epoch;
    // Files read before, by this rank or worker, since the begin or the token.
    uint64_t read;
    // A token of DL_token to go on from, or NULL. Its seed, epoch and group replace those above.
    const char *resume;
    // Chunks whose files are shuffled together: 100.
    uint32_t group;
    // The rank, from 0.
    uint32_t rank;
    // The number of ranks: 1.
    uint32_t world;
    // Machines whose ranks share chunks: 1, for no difference between machines.
    uint32_t nodes;
    // The worker of the rank, from 0.
    uint32_t worker;
    // Workers of the rank: 1.
    uint32_t workers;
    // Files of a batch, which the workers take in turn: 1.
    uint32_t batch;
    // DL_PAD.
    uint32_t flags;
} DL_order;

// The result of a purge.
typedef struct DL_purged {
    // Removed objects.
    uint64_t removed;
    // Their bytes.
    uint64_t removed_bytes;
    // Chunks whose files were moved.
    uint64_t rewritten;
    // Unneeded objects, left for a later purge.
    uint64_t waiting;
    // Their bytes.
    uint64_t waiting_bytes;
    // Bytes to be reclaimed by this purge and later ones, of DL_DRY_RUN.
    uint64_t reclaimable_bytes;
} DL_purged;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The reason of the last failed call of this thread. Valid until the next call of this thread.
const char *DL_message(void);

// The name of a status, such as "DL_NOT_FOUND". Valid for ever.
const char *DL_name(int status);

// The version of the library, such as "0.1.0". Valid for ever.
const char *DL_version(void);

// Passes the messages of the library to a function, from any of its threads; NULL passes them to no
// function. The function must return soon, and must not call this library.
void DL_set_log(DL_log function, void *argument);

// Opens an existing dataset (paper, Table 3): as DL_open with the options user, key and servers, each
// of which may be NULL.
enum DL_status DL_connect(const char *user,
                          const char *key,
                          const char *dataset,
                          const char *servers,
                          struct DL_context **context);

// Opens the dataset at an address, dl://NAME or NAME, with options or NULL. The handle reads from a
// snapshot of the dataset as of now, in a task from the cache of the node. Close with DL_close.
enum DL_status DL_open(const char *address,
                       const struct DL_options *options,
                       struct DL_context **context);

// Closes a handle: makes files that were put durable, and frees the handle in any case. Bytes and
// epochs of the handle stay valid. No other call may use the handle now or later. NULL is no error.
// Gives the error of the first file that could not be stored since the last flush.
enum DL_status DL_close(struct DL_context *context);

// Writes a snapshot of the dataset to a file (paper, DL_save_meta), for DL_load_meta and
// `dlcmd --snapshot`.
enum DL_status DL_save_meta(const struct DL_context *context, const char *file);

// Lets the handle read the version of a snapshot file (paper, DL_load_meta).
enum DL_status DL_load_meta(const struct DL_context *context, const char *file);

// Puts a file from memory (paper, DL_put), with the current time and the permissions 0644. The bytes
// are copied. The file is durable after the next DL_flush. From now on the handle asks the servers
// instead of its snapshot.
enum DL_status DL_put(const struct DL_context *context,
                      const char *path,
                      const void *data,
                      size_t length);

// Puts a local file, with its modification time and permissions: as DL_put.
enum DL_status DL_put_file(const struct DL_context *context, const char *path, const char *file);

// Waits until all files that were put are durable and visible (paper, DL_flush), and stores their
// number where files is not NULL. Gives the error of the first file that could not be stored.
enum DL_status DL_flush(const struct DL_context *context, uint64_t *files);

// Deletes n files by their paths (paper, DL_delete), and stores the number of those that were there
// where deleted is not NULL.
enum DL_status DL_delete(const struct DL_context *context,
                         const char *const *paths,
                         size_t n,
                         uint64_t *deleted);

// Gives bytes back, and empties the array. Without bytes an element stays as it is, so a second
// release of the same array is no error.
void DL_release(struct DL_bytes *bytes, size_t n);

// Borrows a file (paper, DL_get). Release with DL_release(bytes, 1).
enum DL_status DL_get(const struct DL_context *context, const char *path, struct DL_bytes *bytes);

// Reads a file into a buffer, and stores its length; of a buffer that is too short, the needed length.
enum DL_status DL_get_into(const struct DL_context *context,
                           const char *path,
                           uint8_t *buffer,
                           size_t capacity,
                           size_t *length);

// Reads up to capacity bytes of a file from an offset on, and stores their number: fewer at the end of
// the file. Of a large file only the parts with these bytes are read.
enum DL_status DL_get_range(const struct DL_context *context,
                            const char *path,
                            uint64_t offset,
                            uint8_t *buffer,
                            size_t capacity,
                            size_t *length);

// Borrows n files by their paths, in few requests. Release with DL_release(bytes, n) after any status.
// DL_PARTLY if files failed, each with its status in bytes.
enum DL_status DL_get_many(const struct DL_context *context,
                           const char *const *paths,
                           size_t n,
                           struct DL_bytes *bytes);

// Borrows n files by their numbers in the snapshot of the handle: as DL_get_many.
enum DL_status DL_read(const struct DL_context *context,
                       const uint32_t *numbers,
                       size_t n,
                       struct DL_bytes *bytes);

// Reads n files by their numbers into a buffer, one behind the other, and stores where each ends. A
// buffer that is too short gets the ends that the files would have.
enum DL_status DL_read_into(const struct DL_context *context,
                            const uint32_t *numbers,
                            size_t n,
                            uint8_t *buffer,
                            size_t capacity,
                            size_t *ends);

// Describes the file or folder at a path (paper, DL_stat): its entry, with the given path.
enum DL_status DL_stat(const struct DL_context *context, const char *path, struct DL_entry *entry);

// The number of a file in the snapshot of the handle. Numbers run from 0 to DL_count() - 1.
enum DL_status DL_number(const struct DL_context *context, const char *path, uint32_t *number);

// The path of a file by its number, with NUL at its end, and its length without the NUL; of a buffer
// that is too short, the needed capacity.
enum DL_status DL_path(const struct DL_context *context,
                       uint32_t number,
                       char *buffer,
                       size_t capacity,
                       size_t *length);

// The number of files of the dataset: in the snapshot of the handle, or at the servers.
enum DL_status DL_count(const struct DL_context *context, uint64_t *files);

// Lists the files and folders in a folder (paper, DL_ls), "" for the whole dataset, in the order of
// their paths; with DL_RECURSIVE all files below it. Close with DL_ls_close.
enum DL_status DL_ls(const struct DL_context *context,
                     const char *folder,
                     uint32_t flags,
                     struct DL_list **list);

// The next entry; DL_END after the last.
enum DL_status DL_ls_next(struct DL_list *list, struct DL_entry *entry);

// Frees a list. NULL is no error.
void DL_ls_close(struct DL_list *list);

// Begins an epoch (paper, DL_shuffle) in the given order; NULL is epoch 0 with all files for one
// process. The node fetches ahead along the order. Close with DL_epoch_close.
enum DL_status DL_shuffle(const struct DL_context *context,
                          const struct DL_order *order,
                          struct DL_epoch **epoch);

// Borrows the next files, at most n: their numbers, unless numbers is NULL, and their bytes. Stores
// how many, 0 at the end. Release with DL_release(bytes, read). DL_PARTLY if files failed, each with
// its status in bytes. After any other failure the next call goes on with the same files.
enum DL_status DL_next(struct DL_epoch *epoch,
                       size_t n,
                       uint32_t *numbers,
                       struct DL_bytes *bytes,
                       size_t *read);

// The numbers of the next files, at most n, for DL_read or DL_read_into. Stores how many, 0 at the end.
enum DL_status DL_take(struct DL_epoch *epoch,
                       size_t n,
                       uint32_t *numbers,
                       size_t *taken);

// A token, for DL_order.resume, to go on after each rank has read the given number of files of this
// epoch, with any number of ranks and workers; with NUL at its end, and its length without the NUL. Of
// a buffer that is too short, the needed capacity.
enum DL_status DL_token(const struct DL_epoch *epoch,
                        uint64_t read,
                        char *buffer,
                        size_t capacity,
                        size_t *length);

// The number of files of the epoch for this rank or worker, from its begin or token on.
enum DL_status DL_epoch_length(const struct DL_epoch *epoch, uint64_t *files);

// Frees an epoch. NULL is no error.
void DL_epoch_close(struct DL_epoch *epoch);

// Reclaims the space of deleted and overwritten files of the dataset (paper, DL_purge) that nobody
// needed for a time; stores what was done where purged is not NULL.
enum DL_status DL_purge(const struct DL_context *context,
                        uint64_t grace_s,
                        uint32_t flags,
                        struct DL_purged *purged);

// Lists the datasets that the user may read, by name, as folders. Close with DL_ls_close.
enum DL_status DL_datasets(const struct DL_options *options, struct DL_list **list);

// Deletes the dataset at an address with all its files (paper, DL_delete_dataset), for good.
enum DL_status DL_delete_dataset(const char *address, const struct DL_options *options);

// Mounts a dataset or a folder of it, dl://NAME/FOLDER, at an empty local folder (paper, DL_mount), and
// returns when files can be read. The mount stays after the program; DL_umount ends it. Needs the
// program dlcmd in PATH, or named by DIESEL_AGENT.
enum DL_status DL_mount(const char *address,
                        const struct DL_options *options,
                        const char *directory);

// Ends the mount at a folder (paper, DL_umount), and returns when nothing of it is left.
enum DL_status DL_umount(const char *directory);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DIESEL_H */
