// The keys of one direction of a sealed connection, as its sender and its receiver hold them.
//
// Generations. Keys come from a chain: the secret of a generation gives, by HKDF-SHA-256, its AES
// key and the secret of the next generation, and is then overwritten. So keys that are stolen later
// do not open what was sent before. The sender goes on to the next generation by itself, after a
// number of frames, bytes or a time, and every frame says which one it is of. The receiver keeps
// the keys of the generation before, the current one and the next one: frames on their way are
// opened, no transfer waits, and a made-up number costs it no work.
//
// Sequence numbers. The sender numbers its frames from 0, never starting again. The receiver takes
// each number once, within a window behind the highest number seen: UCX may deliver a large message
// behind later small ones, over a path of its own. Frames that are older than
// the window are refused; the KV transfer asks for what it misses.
//
// Thread safety: none; the transfer thread. Owner: SealedSession.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/transfer/frame_cipher.h"

namespace tandem::transfer {

// Overwritten when destroyed.
class SecretKey {
 public:
  SecretKey() = default;
  ~SecretKey();
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;

  absl::Span<const uint8_t> bytes() const { return bytes_; }
  absl::Span<uint8_t> mutable_bytes() { return absl::MakeSpan(bytes_); }

 private:
  std::array<uint8_t, kCipherKeyBytes> bytes_ = {};
};

// RFC 5869 with SHA-256. An empty salt is a salt of zeros.
SecretKey HkdfExtract(absl::string_view salt, absl::string_view input);
SecretKey HkdfExpand(const SecretKey& key, absl::string_view purpose);

// When a sender goes on to the next generation, and when it must stop.
struct KeyLimits {
  // 2^32 blocks of AES under one key: an attacker's advantage is then below 2^-64.
  int64_t bytes_max = int64_t{64} << 30;
  int64_t frames_max = int64_t{1} << 20;
  absl::Duration age_max = absl::Minutes(10);
  // Frames of a connection; it must then be opened again.
  uint64_t sequences_max = uint64_t{1} << 48;
};

class SendingKeys {
 public:
  SendingKeys(const SecretKey& secret, const KeyLimits& limits, absl::Time now);

  struct Stamp {
    uint32_t generation = 0;
    uint64_t sequence = 0;
    FrameCipher* cipher = nullptr;  // until the next call
  };
  // For one frame with a payload of `bytes` bytes. kResourceExhausted when the connection has used
  // its numbers up.
  absl::StatusOr<Stamp> Next(int64_t bytes, absl::Time now);

 private:
  void Begin(const SecretKey& secret, absl::Time now);

  const KeyLimits limits_;
  uint32_t generation_ = 0;
  uint64_t next_sequence_ = 0;
  SecretKey next_secret_;
  std::unique_ptr<FrameCipher> cipher_;
  int64_t bytes_ = 0, frames_ = 0;  // of this generation
  absl::Time born_;
};

// Which sequence numbers were seen, of the last kNumbers below the highest one.
class ReplayWindow {
 public:
  // More than the frames of a connection that overtake each other: 16 MiB are in flight to a peer
  // at most (KvTransferOptions::peer_bytes_in_flight_max), as much as this many frames of 1 KiB.
  static constexpr uint64_t kNumbers = 16384;

  ReplayWindow() : seen_(kNumbers / 64) {}
  // Whether the number may still come.
  bool Takes(uint64_t number) const;
  // REQUIRES: Takes(number).
  void Add(uint64_t number);

 private:
  uint64_t end_ = 0;  // one above the highest number
  // Bound: kNumbers bits, fixed.
  std::vector<uint64_t> seen_;  // by number modulo kNumbers
};

class ReceivingKeys {
 public:
  explicit ReceivingKeys(const SecretKey& secret);

  // Shared with the payloads that are still landing: their generation may end before they land.
  using SharedCipher = std::shared_ptr<FrameCipher>;
  // The cipher of a generation that frames may be of now; null for all others.
  SharedCipher Find(uint32_t generation) const;
  bool Takes(uint64_t sequence) const { return window_.Takes(sequence); }
  // A frame was authentic: takes its number, and goes on to its generation. REQUIRES: Find and
  // Takes accepted it.
  void Accept(uint32_t generation, uint64_t sequence);

 private:
  SharedCipher TakeNext();

  uint32_t generation_ = 0;  // the newest that an authentic frame was of
  SecretKey next_secret_;    // of the generation behind next_
  SharedCipher previous_, current_, next_;
  ReplayWindow window_;
};

}  // namespace tandem::transfer
