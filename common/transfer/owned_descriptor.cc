#include "common/transfer/owned_descriptor.h"

#include <unistd.h>

#include <utility>

namespace tandem::transfer {

OwnedDescriptor::~OwnedDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace tandem::transfer
