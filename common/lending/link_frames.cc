#include "common/lending/link_frames.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/lending/link_handshake.h"

namespace tandem::lending {

absl::Status SendFrame(int socket, absl::string_view message) {
  const auto size = static_cast<uint16_t>(message.size());
  const std::string bytes =
      absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&size), sizeof size), message);
  const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(bytes.size())) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("sending ", bytes.size(),
                   " bytes: ", sent < 0 ? std::strerror(errno) : "the socket is full"));
}

absl::StatusOr<std::optional<std::string>> FrameReader::Read(int socket) {
  while (true) {
    uint16_t size = 0;
    size_t wanted = sizeof size;
    if (bytes_.size() >= sizeof size) {
      std::memcpy(&size, bytes_.data(), sizeof size);
      if (size > kHandshakeBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat(
            "a handshake message of ", size, " bytes, expected at most ", kHandshakeBytesMax));
      }
      wanted += size;
      if (bytes_.size() == wanted) {
        return std::optional(std::exchange(bytes_, std::string()).substr(sizeof size));
      }
    }
    char buffer[kHandshakeBytesMax];
    const ssize_t got = ::recv(socket, buffer, wanted - bytes_.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<std::string>();
    if (got <= 0) return absl::UnavailableError("the other process has closed the connection");
    bytes_.append(buffer, static_cast<size_t>(got));
  }
}

}  // namespace tandem::lending
