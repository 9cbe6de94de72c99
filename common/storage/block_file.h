// KV blocks in a file of bounded size, found by their hashes. When the file is full, the block
// unused for longest that no stored block follows makes room. Slots are holes in the file until
// they are written; when the file system has no room for another, blocks make room for each other
// among the slots that were written, and after some saves a hole is tried again. The file outlives
// its process: the next one finds the blocks again, if it serves the same model with the same
// numerics. A file without a path is memory of its process, and ends with it.
//
//   header     one page: what the blocks are, and how large
//   entries    one a slot: the block's hash and its parent's, its order, the checksums of the block
//              and of the entry
//   slots      one block each, layer after layer
//
// A process may die at any moment: the entry that counts for a slot is cleared before the slot is
// overwritten and written after it. What the machine lost (a power failure, a bad disk) is found by
// its checksum when it is read, is dropped, and then counts as not stored.
//
// Thread safety: none; one thread. Owner: BlockTiers.
// Invariants: one process has the file open at a time; a hash has at most one slot.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "common/storage/block_store.h"
#include "common/storage/use_order.h"

namespace tandem::storage {

struct BlockFileOptions {
  std::string path;  // empty: in memory
  // What the blocks of this node are: model, numerics, layout. A file of other contents is emptied.
  std::string contents;
  int64_t block_bytes = 0;
  int64_t bytes_max = 0;  // of the whole file
};

class BlockFile final : public BlockStore {
 public:
  // Opens the file, or makes it, readable by its owner alone. Blocks of other contents or of
  // another size are dropped, with a line in the log. Errors: kInvalidArgument when bytes_max holds
  // no block, or `contents` does not fit the header; kFailedPrecondition when another process has
  // the file; kPermissionDenied when it is another user's or has further names; otherwise the
  // system's, naming the path.
  static absl::StatusOr<std::unique_ptr<BlockFile>> Open(const BlockFileOptions& options);
  ~BlockFile() override;
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  absl::Status Save(const kv::BlockHash& hash, const kv::BlockHash& parent,
                    absl::Span<const absl::Span<const std::byte>> pieces,
                    std::vector<kv::BlockHash>& removed) override;
  absl::Status Load(const kv::BlockHash& hash,
                    absl::Span<const absl::Span<std::byte>> pieces) override;
  void Touch(const kv::BlockHash& hash) override { order_.Use(hash); }
  void Forget(const kv::BlockHash& hash) override;
  bool Contains(const kv::BlockHash& hash) const override { return by_hash_.contains(hash); }
  kv::BlockHash ParentOf(const kv::BlockHash& hash) const override { return order_.ParentOf(hash); }
  // After Open they are in the order of their saving.
  std::vector<kv::BlockHash> Hashes() const override { return order_.Hashes(); }
  int64_t slots() const override { return slots_; }
  int64_t size() const override { return static_cast<int64_t>(by_hash_.size()); }

 private:
  static constexpr int kSavesWithoutHoles = 256;
  struct Entry;
  struct Stored {
    int64_t slot = 0;
    uint64_t checksum = 0;
  };

  // `descriptor`: -1 without a path.
  BlockFile(int descriptor, const BlockFileOptions& options, int64_t slots);
  // Of a file without a path: memory of this process alone, which is copied to and from without a
  // system call.
  static absl::StatusOr<std::unique_ptr<BlockFile>> InMemory(const BlockFileOptions& options,
                                                             int64_t slots);
  struct Pieces;
  absl::Status Write(Pieces pieces, int64_t offset);
  absl::Status Read(Pieces pieces, int64_t offset);
  // The header that this process would write.
  std::string Header() const;
  absl::string_view name() const { return Name(options_); }  // for errors
  static absl::string_view Name(const BlockFileOptions& options) {
    return options.path.empty() ? "swap space" : absl::string_view(options.path);
  }
  // Empties the file and writes its header.
  absl::Status Create();
  absl::Status ReadEntries();
  absl::Status WriteEntry(int64_t slot, const Entry& entry);
  // A free slot, or that of the block that makes room for one that follows `parent`, which is
  // dropped. nullopt: none does.
  std::optional<int64_t> TakeSlot(const kv::BlockHash& parent, std::vector<kv::BlockHash>& removed);
  void Drop(const kv::BlockHash& hash);
  // Writes a block and then its entry.
  absl::Status WriteSlot(int64_t slot, const std::vector<iovec>& pieces, const Entry& entry);
  // The file system had no room for `slot`, which is free and was a hole.
  void GiveUpHoles(int64_t slot);
  int64_t EntryAt(int64_t slot) const;
  int64_t SlotAt(int64_t slot) const;
  absl::Status Fault(absl::string_view what) const;

  const int descriptor_;
  std::byte* memory_ = nullptr;  // [SlotAt(slots_)]; null with a path
  const BlockFileOptions options_;
  const int64_t slots_, slot_bytes_;
  uint64_t next_order_ = 1;
  // Bound: the slots.
  absl::flat_hash_map<kv::BlockHash, Stored> by_hash_;
  UseOrder order_;  // of the same blocks
  // Free slots: those that were written since Open, and others, for which the file system may have
  // no room. Bound: the slots, both together. Used as stacks.
  std::vector<int64_t> free_, holes_;
  // So many more saves take no hole.
  int saves_without_holes_ = 0;
};

}  // namespace tandem::storage
