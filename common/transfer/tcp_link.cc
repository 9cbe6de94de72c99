#include "common/transfer/tcp_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::transfer {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kTagBytes = 16;
constexpr size_t kTcpNonceBytes = 12;

// Multiples of 8, so that each message in the buffer begins at such an address.
size_t TcpRecordBytes(size_t message_bytes) {
  return kLengthBytes + (message_bytes + 7) / 8 * 8 + kTagBytes;
}

}  // namespace

// The records of one direction, in order.
class TcpLink::RecordCipher {
 public:
  RecordCipher(const std::string& key, bool encrypts) : context_(EVP_CIPHER_CTX_new()) {
    TANDEM_CHECK(context_ != nullptr &&
                 EVP_CipherInit_ex(context_, EVP_aes_256_gcm(), nullptr, Bytes(key.data()), nullptr,
                                   encrypts ? 1 : 0) == 1);
  }
  ~RecordCipher() { EVP_CIPHER_CTX_free(context_); }
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // Encrypts the next record's message in place and writes its tag.
  void Seal(absl::Span<std::byte> record) {
    unsigned char none[kTagBytes];
    int written = 0;
    Transform(record);
    TANDEM_CHECK(EVP_CipherFinal_ex(context_, none, &written) == 1 &&
                 EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG, kTagBytes, TagOf(record)) ==
                     1);
  }
  // Decrypts it in place. False when the record is not what the other end sent as the next one.
  bool Open(absl::Span<std::byte> record) {
    unsigned char none[kTagBytes];
    int written = 0;
    Transform(record);
    return EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_SET_TAG, kTagBytes, TagOf(record)) == 1 &&
           EVP_CipherFinal_ex(context_, none, &written) == 1;
  }

 private:
  static const unsigned char* Bytes(const void* bytes) {
    return static_cast<const unsigned char*>(bytes);
  }
  static std::byte* TagOf(absl::Span<std::byte> record) {
    return record.data() + record.size() - kTagBytes;
  }
  void Transform(absl::Span<std::byte> record) {
    unsigned char nonce[kTcpNonceBytes] = {};
    std::memcpy(nonce, &number_, sizeof number_);
    ++number_;
    auto* const message = reinterpret_cast<unsigned char*>(record.data() + kLengthBytes);
    const int bytes = static_cast<int>(record.size() - kLengthBytes - kTagBytes);
    int written = 0;
    TANDEM_CHECK(
        EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, nonce, -1) == 1 &&
        EVP_CipherUpdate(context_, nullptr, &written, Bytes(record.data()), kLengthBytes) == 1 &&
        EVP_CipherUpdate(context_, message, &written, message, bytes) == 1);
  }

  EVP_CIPHER_CTX* const context_;
  uint64_t number_ = 0;
};

absl::StatusOr<std::unique_ptr<TcpLink>> TcpLink::Create(OwnedDescriptor socket,
                                                         const TcpLinkKeys& keys,
                                                         const LinkLimits& limits) {
  RETURN_IF_ERROR(CheckLimits(limits));
  if (keys.send.size() != kTcpLinkKeyBytes || keys.receive.size() != kTcpLinkKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("keys of ", keys.send.size(), " and ",
                                                   keys.receive.size(), " bytes, expected ",
                                                   kTcpLinkKeyBytes));
  }
  const int on = 1;
  if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("TCP_NODELAY: ", std::strerror(errno)));
  }
  std::unique_ptr<TcpLink> link(new TcpLink(std::move(socket), keys, limits));
  link->epoll_ = OwnedDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {.events = EPOLLIN, .data = {}};
  if (link->epoll_.get() < 0 ||
      ::epoll_ctl(link->epoll_.get(), EPOLL_CTL_ADD, link->socket_.get(), &event) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("epoll: ", std::strerror(errno)));
  }
  return link;
}

TcpLink::TcpLink(OwnedDescriptor socket, const TcpLinkKeys& keys, const LinkLimits& limits)
    : socket_(std::move(socket)),
      limits_(limits),
      sent_cipher_(std::make_unique<RecordCipher>(keys.send, /*encrypts=*/true)),
      received_cipher_(std::make_unique<RecordCipher>(keys.receive, /*encrypts=*/false)),
      in_(TcpRecordBytes(limits.message_bytes_max)) {}

TcpLink::~TcpLink() = default;

absl::Status TcpLink::Fail(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
  return failure_;
}

void TcpLink::Flush() {
  while (out_begin_ < out_.size()) {
    const ssize_t sent = ::send(socket_.get(), out_.data() + out_begin_, out_.size() - out_begin_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) {
      if (errno != EAGAIN && errno != EINTR) closed_ = true;
      return;
    }
    out_begin_ += static_cast<size_t>(sent);
  }
  out_.clear();
  out_begin_ = 0;
}

absl::Status TcpLink::Send(MessagePieces message) {
  if (!failure_.ok()) return failure_;
  const uint64_t bytes = MessageBytes(message);
  if (bytes == 0 || bytes > limits_.message_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes, " bytes, expected 1 to ", limits_.message_bytes_max));
  }
  if (out_begin_ > 0) Flush();
  if (out_.size() - out_begin_ + TcpRecordBytes(bytes) > limits_.ring_bytes) {
    return absl::ResourceExhaustedError("the link is full");
  }
  out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(out_begin_));
  out_begin_ = 0;
  const size_t begin = out_.size();
  out_.resize(begin + TcpRecordBytes(bytes));
  std::byte* const record = out_.data() + begin;
  std::memcpy(record, &bytes, kLengthBytes);
  size_t at = kLengthBytes;
  for (const auto piece : message) {
    if (!piece.empty()) std::memcpy(record + at, piece.data(), piece.size());
    at += piece.size();
  }
  std::memset(record + at, 0, TcpRecordBytes(bytes) - kTagBytes - at);
  sent_cipher_->Seal({record, TcpRecordBytes(bytes)});
  Flush();
  if (closed_) return absl::UnavailableError("the other process has closed the link");
  return absl::OkStatus();
}

void TcpLink::ReadSome() {
  if (in_begin_ > 0) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  if (in_end_ == in_.size() || closed_) return;
  const ssize_t got =
      ::recv(socket_.get(), in_.data() + in_end_, in_.size() - in_end_, MSG_DONTWAIT);
  if (got > 0) {
    in_end_ += static_cast<size_t>(got);
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    closed_ = true;
  }
}

absl::StatusOr<std::optional<size_t>> TcpLink::NextMessage() const {
  const size_t there = in_end_ - in_begin_;
  if (there < kLengthBytes) return std::optional<size_t>();
  uint64_t bytes = 0;
  std::memcpy(&bytes, in_.data() + in_begin_, kLengthBytes);
  if (bytes == 0 || bytes > limits_.message_bytes_max) {
    return absl::DataLossError(absl::StrCat("the other end sent a message of ", bytes,
                                            " bytes, expected 1 to ", limits_.message_bytes_max));
  }
  if (there < TcpRecordBytes(bytes)) return std::optional<size_t>();
  return std::optional<size_t>(bytes);
}

absl::StatusOr<std::optional<absl::Span<const std::byte>>> TcpLink::Receive() {
  if (!failure_.ok()) return failure_;
  if (out_begin_ < out_.size()) Flush();
  auto next = NextMessage();
  if (next.ok() && !next->has_value()) {
    ReadSome();
    next = NextMessage();
  }
  if (!next.ok()) return Fail(next.status());
  if (!next->has_value()) {
    if (closed_) return Fail(absl::UnavailableError("the other process has closed the link"));
    return std::optional<absl::Span<const std::byte>>();
  }
  const absl::Span<std::byte> record(in_.data() + in_begin_, TcpRecordBytes(**next));
  if (!received_cipher_->Open(record)) {
    return Fail(absl::DataLossError("a message's tag is wrong: it was changed on the way"));
  }
  in_begin_ += record.size();
  return std::optional<absl::Span<const std::byte>>(record.subspan(kLengthBytes, **next));
}

bool TcpLink::WatchForRoom(bool watch) {
  if (watch == watches_room_) return true;
  epoll_event event = {.events = EPOLLIN, .data = {}};
  if (watch) event.events |= EPOLLOUT;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket_.get(), &event) != 0) return false;
  watches_room_ = watch;
  return true;
}

bool TcpLink::PrepareSleep() {
  const auto next = NextMessage();
  if (!failure_.ok() || !next.ok() || next->has_value()) return false;
  Flush();
  return WatchForRoom(out_begin_ < out_.size());
}

void TcpLink::EndSleep() { WatchForRoom(false); }

// A buffer with a whole message is read first, so it does not grow.
absl::Status TcpLink::CheckPeer() {
  if (!failure_.ok()) return failure_;
  Flush();
  const auto next = NextMessage();
  if (next.ok() && !next->has_value()) ReadSome();
  if (closed_) return absl::UnavailableError("the other process has closed the link");
  return absl::OkStatus();
}

}  // namespace tandem::transfer
