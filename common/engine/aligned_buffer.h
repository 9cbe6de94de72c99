// Memory for kernels: 64-byte aligned, on huge pages where the system grants them, zero until
// written. Thread safety: as a plain array. Owner: the object that declares it.
#pragma once

#include <cstddef>
#include <utility>

namespace tandem::engine {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // Ends the process when the system refuses the memory, as operator new would.
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() { return data_; }
  const void* data() const { return data_; }
  float* floats() { return static_cast<float*>(data_); }
  const float* floats() const { return static_cast<const float*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tandem::engine
