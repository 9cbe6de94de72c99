#include "common/base/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

absl::Status NotRead(absl::string_view flag, const std::string& path, int error) {
  return absl::NotFoundError(absl::StrCat(flag, ": cannot read ", path, ": ", std::strerror(error),
                                          "; expected a file that can be read"));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path,
                                     size_t bytes_max) {
  constexpr size_t kPieceBytes = 64 << 10;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NotRead(flag, path, errno);
  std::string text;
  std::string piece(kPieceBytes, '\0');
  ssize_t count = 0;
  while (text.size() <= bytes_max) {
    count = ::read(fd, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(piece, 0, static_cast<size_t>(count));
  }
  const int error = errno;
  ::close(fd);
  if (count < 0) return NotRead(flag, path, error);
  if (text.size() > bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": longer than expected, at ",
                                                   "most ", bytes_max, " bytes are read"));
  }
  return text;
}

}  // namespace tandem
