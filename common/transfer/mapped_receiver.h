// The reading end of one mapping: fetches and maps one peer's arena, and copies payloads out of it.
// Invariants: every payload whose header came is reported as taken, wanted or not, unless the
// mapping ends first; the listener hears of each payload that it gave a place exactly once, before
// OnHeader returns.
// Thread safety: none; the transfer thread. Owner: the MappedTransport, until the peer is lost or
// offers another mapping.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/transfer/mapped_context.h"

namespace tandem::transfer {

class MappedReceiver {
 public:
  // Begins to fetch the arena that `offer` offers. `declined`: why it may not be mapped, or OK.
  MappedReceiver(MappedContext& context, PeerId peer, const v1::KvMapping& offer,
                 const absl::Status& declined);
  ~MappedReceiver() { Unmap(); }

  uint64_t number() const { return number_; }
  bool open() const { return arena_ != nullptr; }
  // The descriptor is on its way: call Progress() again soon.
  bool opening() const { return offer_.has_value(); }
  // A data frame whose payload lies in the arena.
  void OnHeader(const v1::KvFrame& frame);
  // Moves the opening on and reports what was taken; says whether anything happened.
  bool Progress();
  // The owner closed the mapping, or the peer is lost. Copies nothing more.
  void Unmap();

 private:
  absl::Status Open();
  // Asks the owner for the descriptor. OK also while too many callers wait at its socket: the next
  // Open() asks again.
  absl::Status Call();
  // The payload's pieces in the arena. Errors: kInvalidArgument for pieces outside of it.
  absl::StatusOr<GatherList> PiecesOf(const v1::KvViaMapping& via) const;
  // Asks the listener for a place and copies the payload there, if it gives one.
  void Land(const v1::KvFrame& frame, const GatherList& pieces);
  void ReportTaken();
  // Ends the mapping and tells the owner.
  void Fail(const absl::Status& why);
  void Tell(v1::KvMapping::Kind kind);

  MappedContext& context_;
  const PeerId peer_;
  const uint64_t number_;
  const uint64_t arena_bytes_;
  const absl::Time give_up_;
  bool counted_ = false;                       // in the context's mapped_bytes
  std::optional<v1::KvMapping> offer_;         // while opening
  std::unique_ptr<ArenaDescriptorCall> call_;  // while opening, once the owner's socket took it
  std::unique_ptr<MappedArena> arena_;         // while open
  v1::KvMapping taken_;                        // not reported yet; kTakenMax ordinals at most
  size_t taken_bytes_ = 0;                     // of those payloads
};

}  // namespace tandem::transfer
