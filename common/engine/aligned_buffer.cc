#include "common/engine/aligned_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/base/check.h"

namespace tandem::engine {

AlignedBuffer::AlignedBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TANDEM_CHECK(data_ != MAP_FAILED, "cannot map ", bytes, " bytes: ", std::strerror(errno));
  // Ask for huge pages, which cause fewer TLB misses. The system may refuse.
  ::madvise(data_, bytes, MADV_HUGEPAGE);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace tandem::engine
