#include "common/model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::model {

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const std::string message = absl::StrCat(path, ": cannot open: ", std::strerror(errno));
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(message);
    return absl::UnavailableError(message);
  }
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot stat: ", std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (status.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the file is empty"));
  }
  const size_t size = static_cast<size_t>(status.st_size);
  void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapping == MAP_FAILED) {
    return absl::UnavailableError(
        absl::StrCat(path, ": cannot map ", size, " bytes: ", std::strerror(errno)));
  }
  std::unique_ptr<MappedFile> file(new MappedFile(path));
  file->mapping_ = mapping;
  file->modified_ns_ = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  file->bytes_ = absl::MakeConstSpan(static_cast<const std::byte*>(mapping), size);
  return file;
}

std::unique_ptr<MappedFile> MappedFile::FromMemory(std::string path, std::string contents) {
  std::unique_ptr<MappedFile> file(new MappedFile(std::move(path)));
  file->contents_ = std::move(contents);
  file->bytes_ = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(file->contents_.data()),
                                     file->contents_.size());
  return file;
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, bytes_.size());
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t bytes_max) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const absl::Span<const std::byte> bytes = file->bytes();
  if (bytes.size() > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes.size(), " bytes, at most ", bytes_max, " are read"));
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace tandem::model
