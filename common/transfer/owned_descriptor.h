// A file descriptor that is closed when its owner ends.
// Thread safety: none; its owner.
#pragma once

namespace tandem::transfer {

class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int fd = -1) : fd_(fd) {}
  ~OwnedDescriptor();
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;
  // -1: none.
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace tandem::transfer
