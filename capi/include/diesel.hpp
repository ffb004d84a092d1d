// libdiesel for C++17: owners of handles and bytes over diesel.h, and errors as exceptions. Header only.
#ifndef DIESEL_HPP
#define DIESEL_HPP

#include "diesel.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dl {

/// A failed call: its status, and its reason as what().
class Error : public std::runtime_error {
public:
    Error(DL_status status, const std::string &reason) : std::runtime_error(reason), status_(status) {}
    DL_status status() const noexcept { return status_; }

private:
    DL_status status_;
};

/// Throws the error of a failed call.
inline void check(DL_status status) {
    if (status != DL_OK) throw Error(status, DL_message());
}

/// The bytes of a file, lent as long as the object lives. Without bytes, status() tells why.
class Bytes {
public:
    Bytes() = default;
    explicit Bytes(DL_bytes bytes) noexcept : bytes_(bytes) {}
    Bytes(Bytes &&other) noexcept : bytes_(std::exchange(other.bytes_, DL_bytes{})) {}
    Bytes &operator=(Bytes &&other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    Bytes(const Bytes &) = delete;
    Bytes &operator=(const Bytes &) = delete;
    ~Bytes() { DL_release(&bytes_, 1); }

    DL_status status() const noexcept { return bytes_.status; }
    std::size_t size() const noexcept { return bytes_.length; }
    const std::uint8_t *data() const noexcept { return bytes_.data; }
    std::string_view view() const noexcept {
        return {reinterpret_cast<const char *>(bytes_.data), bytes_.length};
    }

private:
    DL_bytes bytes_{};
};

/// A file of an epoch.
struct File {
    std::uint32_t number;
    Bytes bytes;
};

/// The files of an epoch, for a range-for: `for (dl::File &file : epoch)`.
class Epoch {
public:
    explicit Epoch(DL_epoch *epoch) noexcept : epoch_(epoch) {}
    Epoch(Epoch &&other) noexcept
        : epoch_(std::exchange(other.epoch_, nullptr)), ahead_(std::move(other.ahead_)), at_(other.at_) {}
    Epoch(const Epoch &) = delete;
    Epoch &operator=(const Epoch &) = delete;
    Epoch &operator=(Epoch &&) = delete;
    ~Epoch() { DL_epoch_close(epoch_); }

    /// The next files, at most n; none at the end. A file that can't be read has a status of its own.
    std::vector<File> next(std::size_t n) {
        std::vector<std::uint32_t> numbers(n);
        std::vector<DL_bytes> bytes(n);
        std::size_t read = 0;
        const DL_status status = DL_next(epoch_, n, numbers.data(), bytes.data(), &read);
        if (status != DL_PARTLY) check(status);
        std::vector<File> files;
        files.reserve(read);
        for (std::size_t at = 0; at < read; at++) files.push_back({numbers[at], Bytes(bytes[at])});
        return files;
    }

    /// The number of files.
    std::uint64_t length() const {
        std::uint64_t files = 0;
        check(DL_epoch_length(epoch_, &files));
        return files;
    }

    /// A token to go on after each rank has read some files.
    std::string token(std::uint64_t read) const {
        std::size_t needed = 0;
        DL_status status = DL_token(epoch_, read, nullptr, 0, &needed);
        if (status != DL_TOO_SHORT) check(status);
        std::string text(needed, '\0');
        check(DL_token(epoch_, read, text.data(), text.size(), &needed));
        text.resize(needed);
        return text;
    }

    /// The place of a range-for.
    class Iterator {
    public:
        explicit Iterator(Epoch *epoch) : epoch_(epoch) { fill(); }
        File &operator*() const { return epoch_->ahead_[epoch_->at_]; }
        Iterator &operator++() {
            epoch_->at_++;
            fill();
            return *this;
        }
        bool operator!=(const Iterator &other) const { return epoch_ != other.epoch_; }

    private:
        void fill() {
            if (epoch_ == nullptr || epoch_->at_ < epoch_->ahead_.size()) return;
            epoch_->ahead_ = epoch_->next(64);
            epoch_->at_ = 0;
            if (epoch_->ahead_.empty()) epoch_ = nullptr;
        }
        Epoch *epoch_;
    };

    Iterator begin() { return Iterator(this); }
    Iterator end() { return Iterator(nullptr); }

private:
    DL_epoch *epoch_;
    std::vector<File> ahead_;
    std::size_t at_ = 0;
};

/// A dataset, for any number of threads.
class Dataset {
public:
    /// Opens dl://NAME; options as in C, without their size.
    explicit Dataset(const std::string &address, DL_options options = {}) {
        options.size = sizeof options;
        check(DL_open(address.c_str(), &options, &context_));
    }
    Dataset(Dataset &&other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
    Dataset(const Dataset &) = delete;
    Dataset &operator=(const Dataset &) = delete;
    Dataset &operator=(Dataset &&) = delete;
    ~Dataset() { DL_close(context_); }

    /// Closes the handle; throws if a file that was put could not be stored.
    void close() { check(DL_close(std::exchange(context_, nullptr))); }

    void put(const std::string &path, std::string_view bytes) {
        check(DL_put(context_, path.c_str(), bytes.data(), bytes.size()));
    }

    /// Makes the files that were put durable; gives their number.
    std::uint64_t flush() {
        std::uint64_t files = 0;
        check(DL_flush(context_, &files));
        return files;
    }

    Bytes get(const std::string &path) const {
        DL_bytes bytes{};
        check(DL_get(context_, path.c_str(), &bytes));
        return Bytes(bytes);
    }

    /// The file at a path; none if there is none.
    std::optional<Bytes> find(const std::string &path) const {
        DL_bytes bytes{};
        const DL_status status = DL_get(context_, path.c_str(), &bytes);
        if (status == DL_NOT_FOUND) return std::nullopt;
        check(status);
        return Bytes(bytes);
    }

    std::uint64_t size() const {
        std::uint64_t files = 0;
        check(DL_count(context_, &files));
        return files;
    }

    /// The path of a file by its number.
    std::string path(std::uint32_t number) const {
        std::size_t length = 0;
        const DL_status status = DL_path(context_, number, nullptr, 0, &length);
        if (status != DL_TOO_SHORT) check(status);
        std::string text(length, '\0');
        check(DL_path(context_, number, text.data(), text.size(), &length));
        text.resize(length);
        return text;
    }

    /// An epoch; order as in C, without its size.
    Epoch shuffle(DL_order order = {}) const {
        order.size = sizeof order;
        DL_epoch *epoch = nullptr;
        check(DL_shuffle(context_, &order, &epoch));
        return Epoch(epoch);
    }

    /// The handle for functions of diesel.h.
    DL_context *handle() const noexcept { return context_; }

private:
    DL_context *context_ = nullptr;
};

} // namespace dl

#endif
