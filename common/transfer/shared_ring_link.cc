#include "common/transfer/shared_ring_link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::transfer {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kRecordAlignment = 8;
constexpr size_t kControlBytes = 4096;  // one page in front of the rings
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t MemoryBytes(const LinkLimits& limits) { return kControlBytes + 2 * limits.ring_bytes; }

// A message in a ring: its length in 8 bytes, then its bytes, padded to 8.
uint64_t RecordBytes(uint64_t message_bytes) {
  return kRecordAlignment +
         (message_bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

absl::Status ExhaustedError(absl::string_view call) {
  return absl::ResourceExhaustedError(absl::StrCat(call, ": ", std::strerror(errno)));
}

}  // namespace

// Positions only grow; an offset is a position modulo the ring's size.
struct SharedRingLink::Ring {
  alignas(kCacheLine) std::atomic<uint64_t> written;  // set by the sender
  alignas(kCacheLine) std::atomic<uint64_t> read;     // set by the receiver
  alignas(kCacheLine) std::atomic<uint32_t> asleep;   // 1: the receiver wants a byte in the socket
};

absl::StatusOr<OwnedDescriptor> NewRingMemory(const LinkLimits& limits) {
  RETURN_IF_ERROR(CheckLimits(limits));
  OwnedDescriptor memory(::memfd_create("tandem-calls", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0) return ExhaustedError("memfd_create");
  if (::ftruncate(memory.get(), static_cast<off_t>(MemoryBytes(limits))) != 0) {
    return ExhaustedError("ftruncate");
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) return ExhaustedError("sealing");
  return memory;
}

absl::StatusOr<std::unique_ptr<SharedRingLink>> SharedRingLink::Create(
    OwnedDescriptor socket, const OwnedDescriptor& memory, Side side, const LinkLimits& limits) {
  RETURN_IF_ERROR(CheckLimits(limits));
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  struct stat file = {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(memory.get(), &file) != 0 ||
      static_cast<uint64_t>(file.st_size) != MemoryBytes(limits)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rings' memory has ", file.st_size, " bytes and seals ", seals,
                     ", expected ", MemoryBytes(limits), " bytes and seals ", kSeals));
  }
  void* base =
      ::mmap(nullptr, MemoryBytes(limits), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) return ExhaustedError("mmap");
  return std::unique_ptr<SharedRingLink>(
      new SharedRingLink(std::move(socket), static_cast<std::byte*>(base), side, limits));
}

SharedRingLink::SharedRingLink(OwnedDescriptor socket, std::byte* base, Side side,
                               const LinkLimits& limits)
    : socket_(std::move(socket)), base_(base), limits_(limits), message_(limits.message_bytes_max) {
  static_assert(2 * sizeof(Ring) <= kControlBytes);
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  // Zeros are a ring's first state, so neither end initialises what the other may already use.
  auto* rings = std::launder(reinterpret_cast<Ring*>(base));
  const size_t own = side == Side::kFirst ? 0 : 1;
  out_ = &rings[own];
  in_ = &rings[1 - own];
  out_bytes_ = base + kControlBytes + own * limits.ring_bytes;
  in_bytes_ = base + kControlBytes + (1 - own) * limits.ring_bytes;
}

SharedRingLink::~SharedRingLink() { ::munmap(base_, MemoryBytes(limits_)); }

absl::Status SharedRingLink::Fail(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
  return failure_;
}

void SharedRingLink::CopyIn(uint64_t position, absl::Span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const size_t offset = position & (limits_.ring_bytes - 1);
  const size_t before_end = std::min(bytes.size(), limits_.ring_bytes - offset);
  std::memcpy(out_bytes_ + offset, bytes.data(), before_end);
  if (before_end < bytes.size()) {
    std::memcpy(out_bytes_, bytes.data() + before_end, bytes.size() - before_end);
  }
}

void SharedRingLink::CopyOut(uint64_t position, absl::Span<std::byte> bytes) const {
  const size_t offset = position & (limits_.ring_bytes - 1);
  const size_t before_end = std::min(bytes.size(), limits_.ring_bytes - offset);
  std::memcpy(bytes.data(), in_bytes_ + offset, before_end);
  if (before_end < bytes.size()) {
    std::memcpy(bytes.data() + before_end, in_bytes_, bytes.size() - before_end);
  }
}

absl::Status SharedRingLink::Send(MessagePieces message) {
  if (!failure_.ok()) return failure_;
  const uint64_t bytes = MessageBytes(message);
  if (bytes == 0 || bytes > limits_.message_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes, " bytes, expected 1 to ", limits_.message_bytes_max));
  }
  if (sent_ + RecordBytes(bytes) - sent_read_ > limits_.ring_bytes) {
    const uint64_t read = out_->read.load(std::memory_order_acquire);
    if (read - sent_read_ > sent_ - sent_read_) {
      return Fail(absl::DataLossError(absl::StrCat("the other end says it has read up to ", read,
                                                   ", expected ", sent_read_, " to ", sent_)));
    }
    sent_read_ = read;
    if (sent_ + RecordBytes(bytes) - sent_read_ > limits_.ring_bytes) {
      return absl::ResourceExhaustedError("the link is full");
    }
  }
  CopyIn(sent_, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&bytes), sizeof bytes));
  uint64_t position = sent_ + sizeof bytes;
  for (const auto piece : message) {
    CopyIn(position, piece);
    position += piece.size();
  }
  sent_ += RecordBytes(bytes);
  // Sequentially consistent, as in PrepareSleep: either this end sees `asleep`, or the other end
  // sees the message before it sleeps.
  out_->written.store(sent_, std::memory_order_seq_cst);
  if (out_->asleep.load(std::memory_order_seq_cst) != 0 &&
      out_->asleep.exchange(0, std::memory_order_seq_cst) != 0) {
    // A full socket holds a wake-up already; a closed one is found by CheckPeer.
    const char wake = 0;
    (void)::send(socket_.get(), &wake, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<absl::Span<const std::byte>>> SharedRingLink::Receive() {
  if (!failure_.ok()) return failure_;
  const uint64_t waiting = in_->written.load(std::memory_order_acquire) - received_;
  if (waiting == 0) return std::optional<absl::Span<const std::byte>>();
  uint64_t bytes = 0;
  if (waiting <= limits_.ring_bytes && waiting >= sizeof bytes) {
    CopyOut(received_, absl::MakeSpan(reinterpret_cast<std::byte*>(&bytes), sizeof bytes));
  }
  if (bytes == 0 || bytes > limits_.message_bytes_max || RecordBytes(bytes) > waiting) {
    return Fail(absl::DataLossError(
        absl::StrCat("the other end sent a message of ", bytes, " bytes with ", waiting,
                     " in the ring, expected 1 to ", limits_.message_bytes_max, " bytes")));
  }
  const absl::Span<std::byte> message = absl::MakeSpan(message_).first(bytes);
  CopyOut(received_ + sizeof bytes, message);
  received_ += RecordBytes(bytes);
  in_->read.store(received_, std::memory_order_release);
  return std::optional<absl::Span<const std::byte>>(message);
}

bool SharedRingLink::PrepareSleep() {
  in_->asleep.store(1, std::memory_order_seq_cst);
  if (failure_.ok() && in_->written.load(std::memory_order_seq_cst) == received_) return true;
  EndSleep();
  return false;
}

void SharedRingLink::EndSleep() { in_->asleep.store(0, std::memory_order_relaxed); }

absl::Status SharedRingLink::CheckPeer() {
  char wake_ups[64];
  const ssize_t got = ::recv(socket_.get(), wake_ups, sizeof wake_ups, MSG_DONTWAIT);
  if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) return failure_;
  return absl::UnavailableError("the other process has closed the link");
}

}  // namespace tandem::transfer
