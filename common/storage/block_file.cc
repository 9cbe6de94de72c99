#include "common/storage/block_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"

namespace tandem::storage {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr absl::string_view kMagic = "tandem KV blocks 2\n";
constexpr int kPiecesMax = 1024;  // of one system call (IOV_MAX)

int64_t RoundUp(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// The checksum of a block, which is another one for another hash: bytes in the wrong slot are
// found.
class Checksum {
 public:
  explicit Checksum(const kv::BlockHash& hash) : state_(XXH3_createState()) {
    XXH3_64bits_reset_withSeed(state_, hash.high ^ hash.low);
  }
  ~Checksum() { XXH3_freeState(state_); }
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void Add(absl::Span<const std::byte> bytes) {
    XXH3_64bits_update(state_, bytes.data(), bytes.size());
  }
  uint64_t value() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* const state_;
};

// Reads or writes all bytes of `pieces` at `offset`, in as few calls as the system allows. `what`:
// the call's name, for errors.
template <typename Call>
absl::Status Transfer(absl::string_view what, std::vector<iovec> pieces, int64_t offset,
                      Call call) {
  size_t first = 0;
  while (first < pieces.size()) {
    if (pieces[first].iov_len == 0) {
      ++first;
      continue;
    }
    const auto count = std::min<size_t>(pieces.size() - first, kPiecesMax);
    const ssize_t moved = call(&pieces[first], static_cast<int>(count), offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return absl::ErrnoToStatus(errno, what);
    if (moved == 0) return absl::OutOfRangeError("the file ends early");
    offset += moved;
    auto left = static_cast<size_t>(moved);
    while (left > 0 && left >= pieces[first].iov_len) left -= pieces[first++].iov_len;
    if (left > 0) {
      pieces[first].iov_base = static_cast<char*>(pieces[first].iov_base) + left;
      pieces[first].iov_len -= left;
    }
  }
  return absl::OkStatus();
}

absl::Status WriteAll(int descriptor, std::vector<iovec> pieces, int64_t offset) {
  return Transfer("write", std::move(pieces), offset,
                  [descriptor](const iovec* from, int count, off_t at) {
                    return pwritev(descriptor, from, count, at);
                  });
}

absl::Status ReadAll(int descriptor, std::vector<iovec> pieces, int64_t offset) {
  return Transfer("read", std::move(pieces), offset,
                  [descriptor](const iovec* to, int count, off_t at) {
                    return preadv(descriptor, to, count, at);
                  });
}

// Another user could read or change what lies in a file of theirs, or in one that they reach by
// another name.
absl::Status CheckOwnFile(absl::string_view path, const struct stat& about) {
  if (!S_ISREG(about.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  if (about.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": the file belongs to user ",
                                                    about.st_uid, ", expected this process's, ",
                                                    geteuid()));
  }
  if (about.st_nlink != 1) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": the file has ", about.st_nlink, " names (hard links), expected one"));
  }
  return absl::OkStatus();
}

// The file system, the user's quota or the process's limit has no room for a write.
bool IsFull(const absl::Status& written) {
  return absl::IsResourceExhausted(written) || absl::IsOutOfRange(written);
}

iovec Piece(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

}  // namespace

// What one transfer copies, one piece after another.
struct BlockFile::Pieces {
  std::vector<iovec> list;
};

// As it lies in the file, in the machine's byte order. All zero: the slot is free.
struct BlockFile::Entry {
  uint64_t high = 0, low = 0;  // the hash
  uint64_t order = 0;          // of saving, from 1
  uint64_t checksum = 0;       // of the block
  uint64_t parent_high = 0, parent_low = 0;
  uint64_t own_checksum = 0;  // of the fields above
  uint64_t unused = 0;

  uint64_t Own() const { return XXH3_64bits(this, offsetof(Entry, own_checksum)); }
};

BlockFile::BlockFile(int descriptor, const BlockFileOptions& options, int64_t slots)
    : descriptor_(descriptor),
      options_(options),
      slots_(slots),
      slot_bytes_(RoundUp(options.block_bytes)) {}

BlockFile::~BlockFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(SlotAt(slots_)));
}

absl::StatusOr<std::unique_ptr<BlockFile>> BlockFile::InMemory(const BlockFileOptions& options,
                                                               int64_t slots) {
  std::unique_ptr<BlockFile> file(new BlockFile(-1, options, slots));
  const auto bytes = static_cast<size_t>(file->SlotAt(slots));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return file->Fault("mmap");
  madvise(memory, bytes, MADV_HUGEPAGE);  // fewer faults, where the system has large pages
  file->memory_ = static_cast<std::byte*>(memory);
  for (int64_t slot = slots - 1; slot >= 0; --slot) file->free_.push_back(slot);
  return file;
}

absl::Status BlockFile::Write(Pieces pieces, int64_t offset) {
  if (memory_ == nullptr) return WriteAll(descriptor_, std::move(pieces.list), offset);
  for (const iovec& piece : pieces.list) {
    if (piece.iov_len > 0) std::memcpy(memory_ + offset, piece.iov_base, piece.iov_len);
    offset += static_cast<int64_t>(piece.iov_len);
  }
  return absl::OkStatus();
}

absl::Status BlockFile::Read(Pieces pieces, int64_t offset) {
  if (memory_ == nullptr) return ReadAll(descriptor_, std::move(pieces.list), offset);
  for (const iovec& piece : pieces.list) {
    if (piece.iov_len > 0) std::memcpy(piece.iov_base, memory_ + offset, piece.iov_len);
    offset += static_cast<int64_t>(piece.iov_len);
  }
  return absl::OkStatus();
}

int64_t BlockFile::EntryAt(int64_t slot) const {
  return kPageBytes + slot * static_cast<int64_t>(sizeof(Entry));
}

int64_t BlockFile::SlotAt(int64_t slot) const {
  return RoundUp(EntryAt(slots_)) + slot * slot_bytes_;
}

std::string BlockFile::Header() const {
  return absl::StrCat(kMagic, "slots ", slots_, "\nblock bytes ", options_.block_bytes, "\n",
                      options_.contents, "\n");
}

absl::Status BlockFile::Fault(absl::string_view what) const {
  return absl::ErrnoToStatus(errno, absl::StrCat(name(), ": ", what));
}

absl::StatusOr<std::unique_ptr<BlockFile>> BlockFile::Open(const BlockFileOptions& options) {
  TANDEM_CHECK(options.block_bytes > 0, "block_bytes ", options.block_bytes);
  // Each slot takes its block and its entry; one page each for the header and for rounding.
  const int64_t slots = (options.bytes_max - 2 * kPageBytes) /
                        (RoundUp(options.block_bytes) + static_cast<int64_t>(sizeof(Entry)));
  if (slots < 1) {
    return absl::InvalidArgumentError(absl::StrCat(Name(options), ": ", options.bytes_max,
                                                   " bytes hold no KV block, expected at least ",
                                                   RoundUp(options.block_bytes) + 3 * kPageBytes));
  }
  if (options.path.empty()) return InMemory(options, slots);
  const int descriptor =
      open(options.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, absl::StrCat(Name(options), ": open"));
  std::unique_ptr<BlockFile> file(new BlockFile(descriptor, options, slots));
  struct stat about = {};
  if (fstat(descriptor, &about) != 0) return file->Fault("fstat");
  RETURN_IF_ERROR(CheckOwnFile(options.path, about));
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return file->Fault("flock");
    return absl::FailedPreconditionError(
        absl::StrCat(options.path, ": another process uses this file"));
  }
  // The process that had it may have changed its size.
  if (fstat(descriptor, &about) != 0) return file->Fault("fstat");
  // A file that was there may be open to others.
  if (fchmod(descriptor, S_IRUSR | S_IWUSR) != 0) return file->Fault("fchmod");
  const std::string header = file->Header();
  if (header.size() > kPageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("contents: ", options.contents.size(), " bytes, expected less than a page"));
  }
  std::string found(static_cast<size_t>(kPageBytes), '\0');
  const absl::Status read = ReadAll(descriptor, {Piece(found.data(), found.size())}, 0);
  // Blocks that cannot be read now are not of other contents: they stay.
  if (!read.ok() && !absl::IsOutOfRange(read))
    return absl::Status(read.code(), absl::StrCat(options.path, ": ", read.message()));
  std::string wanted = header;
  wanted.resize(static_cast<size_t>(kPageBytes), '\0');
  if (read.ok() && found == wanted && about.st_size == file->SlotAt(slots)) {
    RETURN_IF_ERROR(file->ReadEntries());
    return file;
  }
  if (about.st_size > 0) {
    Log(LogLevel::kInfo, "dropped stored KV blocks of another model, numerics or size",
        {{"path", options.path}});
  }
  RETURN_IF_ERROR(file->Create());
  return file;
}

absl::Status BlockFile::Create() {
  // Without its old bytes first, so that no old entry is taken for one of the new layout.
  if (ftruncate(descriptor_, 0) != 0 || ftruncate(descriptor_, SlotAt(slots_)) != 0)
    return Fault("ftruncate");
  std::string header = Header();
  header.resize(static_cast<size_t>(kPageBytes), '\0');
  RETURN_IF_ERROR(WriteAll(descriptor_, {Piece(header.data(), header.size())}, 0));
  for (int64_t slot = slots_ - 1; slot >= 0; --slot) holes_.push_back(slot);
  return absl::OkStatus();
}

absl::Status BlockFile::ReadEntries() {
  std::vector<Entry> entries(static_cast<size_t>(slots_));
  RETURN_IF_ERROR(
      ReadAll(descriptor_, {Piece(entries.data(), entries.size() * sizeof(Entry))}, EntryAt(0)));
  std::map<uint64_t, int64_t> by_order;
  for (int64_t slot = slots_ - 1; slot >= 0; --slot) {
    const Entry& entry = entries[static_cast<size_t>(slot)];
    const bool whole = entry.order > 0 && entry.Own() == entry.own_checksum;
    if (!whole || !by_order.try_emplace(entry.order, slot).second) holes_.push_back(slot);
  }
  for (const auto& [order, slot] : by_order) {
    const Entry& entry = entries[static_cast<size_t>(slot)];
    const kv::BlockHash hash{.high = entry.high, .low = entry.low};
    const auto [it, is_new] = by_hash_.try_emplace(hash);
    if (!is_new) {  // the later one counts
      free_.push_back(it->second.slot);
      order_.Remove(hash);
    }
    it->second = {.slot = slot, .checksum = entry.checksum};
    order_.Add(hash, {.high = entry.parent_high, .low = entry.parent_low});
    next_order_ = order + 1;
  }
  return absl::OkStatus();
}

absl::Status BlockFile::WriteEntry(int64_t slot, const Entry& entry) {
  return Write({{Piece(&entry, sizeof(entry))}}, EntryAt(slot));
}

void BlockFile::Drop(const kv::BlockHash& hash) {
  const auto it = by_hash_.find(hash);
  // If this fails, the checksum of the next block in the slot differs from what the entry says.
  WriteEntry(it->second.slot, Entry()).IgnoreError();
  free_.push_back(it->second.slot);
  order_.Remove(hash);
  by_hash_.erase(it);
}

std::optional<int64_t> BlockFile::TakeSlot(const kv::BlockHash& parent,
                                           std::vector<kv::BlockHash>& removed) {
  const bool may_take_hole = saves_without_holes_ == 0 || by_hash_.empty();
  if (free_.empty() && !holes_.empty() && may_take_hole) {
    const int64_t hole = holes_.back();
    holes_.pop_back();
    return hole;
  }
  if (saves_without_holes_ > 0) --saves_without_holes_;
  if (free_.empty()) {
    const std::optional<kv::BlockHash> goes = order_.ToRemoveFor(parent);
    if (!goes.has_value()) return std::nullopt;
    removed.push_back(*goes);
    Drop(*goes);
  }
  const int64_t slot = free_.back();
  free_.pop_back();
  return slot;
}

absl::Status BlockFile::WriteSlot(int64_t slot, const std::vector<iovec>& pieces,
                                  const Entry& entry) {
  RETURN_IF_ERROR(Write({pieces}, SlotAt(slot)));
  return WriteEntry(slot, entry);
}

void BlockFile::GiveUpHoles(int64_t slot) {
  // What was written of the slot gives its room back, if the file system can do that.
  if (descriptor_ >= 0)
    fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, SlotAt(slot), slot_bytes_);
  holes_.push_back(slot);
  saves_without_holes_ = kSavesWithoutHoles;
}

absl::Status BlockFile::Save(const kv::BlockHash& hash, const kv::BlockHash& parent,
                             absl::Span<const absl::Span<const std::byte>> pieces,
                             std::vector<kv::BlockHash>& removed) {
  if (by_hash_.contains(hash)) return absl::OkStatus();
  const size_t holes = holes_.size();
  std::optional<int64_t> slot = TakeSlot(parent, removed);
  if (!slot.has_value()) return absl::OkStatus();
  const bool was_hole = holes_.size() < holes;
  Checksum checksum(hash);
  std::vector<iovec> from;
  for (const absl::Span<const std::byte> piece : pieces) {
    checksum.Add(piece);
    from.push_back(Piece(piece.data(), piece.size()));
  }
  Entry entry{.high = hash.high,
              .low = hash.low,
              .order = next_order_++,
              .checksum = checksum.value(),
              .parent_high = parent.high,
              .parent_low = parent.low};
  entry.own_checksum = entry.Own();
  absl::Status written = WriteSlot(*slot, from, entry);
  if (was_hole && IsFull(written)) {
    GiveUpHoles(*slot);
    slot = TakeSlot(parent, removed);
    if (slot.has_value()) written = WriteSlot(*slot, from, entry);
  }
  if (!written.ok()) {
    if (slot.has_value()) free_.push_back(*slot);
    return absl::Status(written.code(), absl::StrCat(name(), ": ", written.message()));
  }
  by_hash_[hash] = {.slot = *slot, .checksum = entry.checksum};
  order_.Add(hash, parent);
  return absl::OkStatus();
}

absl::Status BlockFile::Load(const kv::BlockHash& hash,
                             absl::Span<const absl::Span<std::byte>> pieces) {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return absl::NotFoundError("the block is not stored");
  Stored& stored = it->second;
  std::vector<iovec> to;
  for (const absl::Span<std::byte> piece : pieces) to.push_back(Piece(piece.data(), piece.size()));
  absl::Status read = Read({std::move(to)}, SlotAt(stored.slot));
  if (read.ok()) {
    Checksum checksum(hash);
    for (const absl::Span<std::byte> piece : pieces) checksum.Add(piece);
    if (checksum.value() != stored.checksum) {
      read = absl::DataLossError(absl::StrCat(name(), ": a stored block is damaged"));
    }
  }
  if (!read.ok()) {
    Drop(hash);
    return read;
  }
  order_.Use(hash);
  return absl::OkStatus();
}

void BlockFile::Forget(const kv::BlockHash& hash) {
  if (by_hash_.contains(hash)) Drop(hash);
}

}  // namespace tandem::storage
