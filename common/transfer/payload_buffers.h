// Buffers that encrypted payloads are sent from. They are used again, because the first touch of
// fresh memory costs as much as encrypting into it.
// Invariants: bytes() never exceeds bytes_max, except for one buffer that alone is larger.
// Thread safety: none; the transfer thread. Owner: the SealedTransport.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace tandem::transfer {

class PayloadBuffers {
 public:
  explicit PayloadBuffers(size_t bytes_max) : bytes_max_(bytes_max) {}

  struct Buffer {
    std::unique_ptr<std::byte[]> data;  // null: there is no room until one is given back
    size_t bytes = 0;
  };
  // At least `bytes` bytes. REQUIRES: bytes > 0.
  Buffer Take(size_t bytes);
  void Give(Buffer buffer);

  // Of the buffers that are out.
  size_t bytes() const { return bytes_out_; }

 private:
  const size_t bytes_max_;
  size_t bytes_out_ = 0;
  // Bound: kKeptMax.
  std::vector<Buffer> kept_;
};

}  // namespace tandem::transfer
